// Further checkpoints of a save, written into subfolders of the target.
#pragma once

#include "io/staging.hpp"
#include "write/file_layout.hpp"

#include <safemap/save.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// One of `SaveOptions::folders`, laid out.
struct PlannedFolder {
    std::string name;
    /// If the document is written as a tensor: the checkpoint's tensors and the document; else empty.
    std::vector<LazyTensor> tensors;
    Input input;    ///< refers to `tensors`, or to the checkpoint
    Layout layout;  ///< its files are named "NAME/…"
};

/// Lays out the folders of `options` beside the files of `layout`. `options` must outlive the result. Throws
/// invalid_argument for an invalid folder name and for a name that a file already has, and what lay_out() throws.
std::vector<PlannedFolder> plan_folders(const SaveOptions& options, const Layout& layout);

/// Adds the plan of one folder to `report`: its files before the files that `report` lists already, all other lists
/// after.
void report_folder(const PlannedFolder& folder, SaveReport& report);
/// Adds to `report` what is known after all files are written.
void report_written(const PlannedFolder& folder, SaveReport& report);

/// Returns notes on folders of `out` that belong to another save and are left in place.
std::vector<std::string> notes_on_folders(const std::filesystem::path& out, const SaveOptions& options);

}  // namespace safemap::SAFEMAP_ABI::write
