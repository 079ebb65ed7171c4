// A list of files as a folder, for readers of checkpoints with several files.
#pragma once

#include "base/folder.hpp"

#include <safemap/advanced/file.hpp>

#include <filesystem>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI::open {

/// Returns a folder of these files, which need not be in one folder of the file system: each has its own name without
/// the path. It is called after the folder of the first file, where open() finds other files, such as a manifest, too.
/// Opens nothing. Throws rank_repeated if two files have the same name.
std::shared_ptr<const Folder> listed_files(std::span<const std::filesystem::path> files, Mapping mapping);

}  // namespace safemap::SAFEMAP_ABI::open
