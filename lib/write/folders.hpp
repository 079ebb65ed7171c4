// Other checkpoints of a save, in folders of the folder that it writes.
#pragma once

#include "io/replace.hpp"
#include "write/layout.hpp"

#include <safemap/save.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// What one of `SaveOptions::folders` becomes.
struct PlannedFolder {
    std::string name;
    std::vector<LazyTensor> tensors;  ///< those of the checkpoint, and perhaps a structure document
    Input input;                      ///< refers to `tensors`
    Layout layout;                    ///< of files called "NAME/…"
};

/// Lays out the folders of `options` beside the files of `layout`. `options` have to outlive the result.
/// Throws invalid_argument for a name that no folder can have or another file has, and what lay_out() throws.
std::vector<PlannedFolder> plan_folders(const SaveOptions& options, const Layout& layout);

/// Puts what is said of one of the folders before what `report` says already.
void report_folder(const PlannedFolder& folder, SaveReport& report);
/// Adds to `report` what is known when all is written.
void report_written(const PlannedFolder& folder, SaveReport& report);

/// Returns sentences on folders of `out` that hold the state of another save, and stay.
std::vector<std::string> notes_on_folders(const std::filesystem::path& out, const SaveOptions& options);

}  // namespace safemap::SAFEMAP_ABI::write
