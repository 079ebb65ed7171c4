// Steps that save() and ShardWriter share: from the target and the options to allocated files and a report.
#pragma once

#include "base/faults.hpp"
#include "io/staging.hpp"
#include "write/file_layout.hpp"
#include "write/target.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// Returns the options of a ShardWriter. Throws invalid_argument if they have one that it does not take.
const SaveOptions& options_of_writer(const SaveOptions& options);
/// Checks the options, then the target, and lays the tensors out. The target must not exist unless it counts as new, or
/// the options ask only for a plan or for overwriting. Throws invalid_argument, unsupported_cast, already_exists,
/// path_not_found, and what lay_out throws.
Layout lay_out_at(const std::filesystem::path& out, const Input& input, const SaveOptions& options);
/// Does the same for the one file of a sink. Also throws invalid_argument for options that do not apply to a sink.
Layout lay_out_for(const Sink& sink, const Input& input, const SaveOptions& options);
/// Creates a file of `layout` and reserves its space. Closes the file again, because there may be more files than
/// descriptors. If the disk is full, the error says how much space all files take.
void allocate(io::Staging& staging, const Layout& layout, const PlannedFile& file);

/// Returns the report on a layout, planned or written.
SaveReport report_on(const Layout& layout);

/// Returns true for the keys under which sd-scripts (kohya) stores hashes of the file that it writes: of the data, and
/// of bytes at a fixed place in the file.
bool hashes_a_file(std::string_view key);

/// Returns the metadata of a checkpoint, except hashes of its file, and a pair `[other name] = stored name` for each
/// tie, as huggingface_hub records tied tensors. Does not replace a pair that `given` already has.
Metadata metadata_of(const Checkpoint& checkpoint, Metadata given = {});

/// Returns the input for saving a checkpoint with this metadata. If the structure document is written as a tensor, or
/// tensors as products with their scales, all tensors to write are put into `own`, and the result refers to it.
/// Otherwise the result refers to the checkpoint.
Input input_of(const Checkpoint& checkpoint, Metadata metadata, const SaveOptions& options,
               std::vector<LazyTensor>& own);

/// Returns the options with what the input has in their place: extras, and tensors with dtypes of their own.
SaveOptions own_options(const SaveOptions& options, const Input& input);

/// Saves a checkpoint with this metadata and adds the structure document. If `replaced` is not empty, the file to be
/// replaced must have that identity.
SaveReport save_checkpoint(const std::filesystem::path& out, const Checkpoint& checkpoint, Metadata metadata,
                           const SaveOptions& options, const std::string& replaced = {});

template <class Run> auto during_save(const Sink& sink, Run&& run) {
    return adding([&](Error& error) { error.during("save " + sink.name()); }, std::forward<Run>(run));
}

/// Runs `run` and adds the context "save out/" to its errors, or "save out" for one file.
template <class Run> auto during_save(const std::filesystem::path& out, bool one_file, Run&& run) {
    const auto add = [&](Error& error) {
        const std::string& path = out.native();
        const bool folder = !one_file && !names_file(out) && !path.ends_with('/');
        error.during("save " + path + (folder ? "/" : ""));
    };
    return adding(add, std::forward<Run>(run));
}

}  // namespace safemap::SAFEMAP_ABI::write
