// Folders of the file system.
#pragma once

#include "base/folder.hpp"

#include <safemap/advanced/file.hpp>

#include <filesystem>
#include <memory>

namespace safemap::SAFEMAP_ABI {

/// Opens a directory. It stays open: a save that exchanges it (see save.hpp) does not change what is read from it.
/// Where a save has committed, but died before it had moved its files into place, its files are what the folder holds.
/// Throws as open_file() does; path_not_found also for a path that is no folder; commit_list_damaged.
std::shared_ptr<const Folder> open_folder(const std::filesystem::path& path, Mapping mapping = Mapping::automatic);

}  // namespace safemap::SAFEMAP_ABI
