// The target of a save: a file or a folder, new or replacing an old one.
#pragma once

#include "io/pending_save.hpp"
#include "io/staging.hpp"

#include <safemap/save.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The file or folder that a save writes, and the old files that it replaces.
class Target {
public:
    /// Targets a file if is_one_file(out, options), else a folder. `files` are the names of the files that the model
    /// and its folders will have. Throws already_exists if a folder would not open as them, because a file that stays
    /// in it is preferred or as good. An existing target is refused unless it is to be overwritten, or is a folder that
    /// counts_as_new(out, options). Throws what Staging throws, and several_models if it is ambiguous which model of
    /// the folder is replaced.
    Target(const std::filesystem::path& out, const SaveOptions& options, const std::vector<std::string>& files,
           const io::StagingOptions& job = {});

    io::Staging& staging() noexcept { return staging_; }
    /// The files of the old model, as replaced_files() gives them.
    const std::vector<std::string>& replaced() const noexcept { return replaced_; }
    /// Puts all new files in place and removes the files of the old model.
    void commit();
    /// After commit(): notes on what could not be removed, and on what was renamed.
    const std::vector<std::string>& notes() const noexcept { return staging_.notes(); }

private:
    std::filesystem::path out_;
    SaveOptions options_;  ///< only the members that name the replaced files are set
    io::Staging staging_;
    std::vector<std::string> replaced_;
};

/// Returns the files of a target that another process has made, with the same options. `key` is what
/// Staging::open_to_others() has returned there. Throws invalid_argument if it is another target.
io::JoinedSibling join(const std::filesystem::path& out, const SaveOptions& options, const std::string& key);

/// Returns true if `out` ends in ".safetensors" or ".sft".
bool names_file(const std::filesystem::path& out);
/// Returns true if a save to `out` writes one file and no folder. Throws invalid_argument if the options ask for one
/// file and `out` ends in a slash, which means a folder.
bool is_one_file(const std::filesystem::path& out, const SaveOptions& options);
/// Returns true if `out` is a folder without a checkpoint: an empty folder, or a folder of other files, which stay.
bool counts_as_new(const std::filesystem::path& out);
/// Returns true if, in addition, none of the folders in `out` that the options name has a checkpoint.
bool counts_as_new(const std::filesystem::path& out, const SaveOptions& options);

/// Returns the files to remove when a model in `folder` is replaced: its index and the shards that the index names, or
/// `STEM.safetensors` without an index; and all files of ranks (Hugging Face shards), which their
/// names or their content show. Throws several_models if there are several indexes.
std::vector<std::string> model_files(const std::filesystem::path& folder, std::uint64_t max_header_bytes,
                                     const std::string& stem = "model");
/// Returns the model_files() of a save that overwrites, in `out` and in its folders: "optimizer/model.safetensors".
std::vector<std::string> replaced_files(const std::filesystem::path& out, const SaveOptions& options);
/// Returns notes on the other models of a folder that a save with these options leaves there: safetensors files and
/// indexes with other stems. Libraries may prefer them. `replaced` is what replaced_files() returns.
std::vector<std::string> notes_on_other_models(const std::filesystem::path& out, const SaveOptions& options,
                                               const std::vector<std::string>& replaced);

}  // namespace safemap::SAFEMAP_ABI::write
