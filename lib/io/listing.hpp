// What stands in a directory.
#pragma once

#include <safemap/api.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// The names of the regular files (and of links to such) in the directory open as `folder`, sorted; messages call
/// it `path`.
std::vector<std::string> list_files(int folder, const std::string& path);
/// The names of the folders (and of links to such) in it, sorted.
std::vector<std::string> list_folders(int folder, const std::string& path);
/// The names of the folders in it (a link to one is none), sorted.
std::vector<std::string> list_inner_folders(int folder, const std::string& path);
/// Every name but "." and "..", in no order.
std::vector<std::string> list_all(int folder, const std::string& path);

}  // namespace safemap::SAFEMAP_ABI::io
