// What save() and ShardWriter do alike: from OUT and the options to files that are allocated, and to a report.
#pragma once

#include "base/faults.hpp"
#include "io/replace.hpp"
#include "write/layout.hpp"
#include "write/target.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// Looks at the options and, unless there is only a plan to make or something to replace, at the place; then lays the
/// tensors out. Throws invalid_argument, unsupported_cast, already_exists, path_not_found, and what lay_out throws.
Layout lay_out_at(const std::filesystem::path& out, const Input& input, const SaveOptions& options);
/// The same for the one file of a sink. Throws invalid_argument, too, for options that have no meaning there.
Layout lay_out_for(const Sink& sink, const Input& input, const SaveOptions& options);
/// Creates a file of `layout` and reserves its space; it is closed again, since there may be more files than
/// descriptors. A full disk is told with what all files take.
void allocate(io::Staging& staging, const Layout& layout, const PlannedFile& file);

/// What is planned, or has been done.
SaveReport report_on(const Layout& layout);

/// Returns the metadata of a checkpoint and `[other name] = stored name` for each tie, as huggingface_hub tells of
/// tied tensors. A pair that `given` has already stays.
Metadata metadata_of(const Checkpoint& checkpoint, Metadata given = {});

/// Returns what is to be written of a checkpoint, with this metadata. Its tensors and the structure document, where one
/// is written as a tensor, go to `with_structure`, which the result refers to; else the result refers to the
/// checkpoint.
Input input_of(const Checkpoint& checkpoint, Metadata metadata, const SaveOptions& options,
               std::vector<LazyTensor>& with_structure);

/// Saves a checkpoint with this metadata, the structure document added. If `replaced` is not empty, the file that is
/// replaced has to have that identity.
SaveReport save_checkpoint(const std::filesystem::path& out, const Checkpoint& checkpoint, Metadata metadata,
                           const SaveOptions& options, const std::string& replaced = {});

template <class Run> auto during_save(const Sink& sink, Run&& run) {
    return adding([&](Error& error) { error.during("save " + sink.name()); }, std::forward<Run>(run));
}

/// Puts "save out/" before whatever goes wrong in `run`, or "save out" where `one_file` is wanted.
template <class Run> auto during_save(const std::filesystem::path& out, bool one_file, Run&& run) {
    const auto add = [&](Error& error) {
        const std::string& path = out.native();
        const bool folder = !one_file && !names_file(out) && !path.ends_with('/');
        error.during("save " + path + (folder ? "/" : ""));
    };
    return adding(add, std::forward<Run>(run));
}

}  // namespace safemap::SAFEMAP_ABI::write
