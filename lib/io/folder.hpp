// Opens folders of the file system.
#pragma once

#include "base/folder.hpp"

#include <safemap/advanced/file.hpp>

#include <filesystem>
#include <memory>

namespace safemap::SAFEMAP_ABI {

/// Opens a directory. It stays open, so a save that exchanges the directory (see save.hpp) does not change what is
/// read. If a save has committed but died before it moved its files into place, the folder shows the files of that
/// save.
/// Throws as open_file() does; also path_not_found if the path is not a folder; commit_list_damaged.
std::shared_ptr<const Folder> open_folder(const std::filesystem::path& path, Mapping mapping = Mapping::automatic);

}  // namespace safemap::SAFEMAP_ABI
