// Opens folders of the file system, and expands globs as a shell does.
#pragma once

#include "base/folder.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/api.hpp>

#include <filesystem>
#include <memory>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Opens a directory. It stays open, so a save that exchanges the directory (see save.hpp) does not change what is
/// read. If a save has committed but died before it moved its files into place, the folder shows the files of that
/// save.
/// Throws as open_file() does; also path_not_found if the path is not a folder; commit_list_damaged.
std::shared_ptr<const Folder> open_folder(const std::filesystem::path& path, Mapping mapping = Mapping::automatic);

/// Returns true if a path has one of the characters `*`, `?` and `[`, and nothing exists under it.
bool is_glob(const std::filesystem::path& path);
/// Returns the files and folders that match a glob, sorted by name. A `*` matches no `/`, and no `.` that begins a
/// name; `.*` does not match `.` and `..`. Skips folders that cannot be listed. Throws out_of_memory.
std::vector<std::filesystem::path> paths_matching(const std::filesystem::path& glob);

}  // namespace safemap::SAFEMAP_ABI
