// Lists directories.
#pragma once

#include <safemap/api.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// Returns the sorted names of the regular files in the open `folder`, with links to files. Messages call it `path`.
std::vector<std::string> list_files(int folder, const std::string& path);
/// Returns the sorted names of the folders in it, with links to folders.
std::vector<std::string> list_folders(int folder, const std::string& path);
/// Returns the sorted names of the folders in it, without links.
std::vector<std::string> list_inner_folders(int folder, const std::string& path);
/// Returns the sorted names of what is neither: pipes, sockets, devices, broken links.
std::vector<std::string> list_others(int folder, const std::string& path);
/// Returns all names except "." and "..", unsorted.
std::vector<std::string> list_all(int folder, const std::string& path);

}  // namespace safemap::SAFEMAP_ABI::io
