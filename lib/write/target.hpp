// Where a checkpoint is written to: a file or a folder, new or in the place of an old one.
#pragma once

#include "io/replace.hpp"

#include <safemap/save.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

class Target {
public:
    /// A file where is_one_file(out, options), else a folder. What stands there is refused unless it is to be
    /// overwritten, or is a folder for a folder, and counts_as_new(out).
    /// Throws what Staging does, and several_models where it cannot be told which model the folder's old one is.
    Target(const std::filesystem::path& out, const SaveOptions& options, const io::Job& job = {});

    io::Staging& staging() noexcept { return staging_; }
    /// Everything appears, and what the old model consisted of is gone.
    void commit();
    /// After commit(): what could not be cleared away, and what has another name now.
    const std::vector<std::string>& notes() const noexcept { return staging_.notes(); }

private:
    std::vector<std::string> old_files() const;

    std::filesystem::path out_;
    bool overwrite_;
    std::vector<std::string> folders_;  ///< in it, which are written, too
    io::Staging staging_;
};

/// Returns true where `out` ends in ".safetensors" or ".sft".
bool names_file(const std::filesystem::path& out);
/// Returns true where a save to `out` writes one file and no folder. Throws invalid_argument where the options want a
/// file, and `out` ends in a slash, which wants a folder.
bool is_one_file(const std::filesystem::path& out, const SaveOptions& options);
/// Whether `out` is a folder without a checkpoint in it: an empty one, or one of other files, which stay.
bool counts_as_new(const std::filesystem::path& out);
/// The same, and nor has one of the folders in it that the options name.
bool counts_as_new(const std::filesystem::path& out, const SaveOptions& options);

/// What goes when a model in `folder` is replaced: its index and the shards that it names, or a `model.safetensors`
/// without an index. Throws several_models where there are several indexes.
std::vector<std::string> model_files(const std::filesystem::path& folder);

}  // namespace safemap::SAFEMAP_ABI::write
