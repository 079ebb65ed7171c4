// Files and folders of the file system as Source and Folder.
#pragma once

#include <safemap/source.hpp>

#include <filesystem>
#include <memory>

namespace safemap {

/// Whether a file may be mapped.
enum class Mapping : std::uint8_t { allowed, never };

/// Opens a regular file for reading (symbolic links are followed, O_CLOEXEC). Its size and identity are taken now;
/// a file that is found shorter later gives Errc::file_changed. The mapping, where one is asked for, is made once,
/// shared, read-only, and unmapped by its last owner. Throws path_not_found, permission_denied, io_error.
SAFEMAP_API std::shared_ptr<const Source> open_file(const std::filesystem::path& path,
                                                    Mapping mapping = Mapping::allowed);
/// Opens a directory. Throws likewise.
SAFEMAP_API std::shared_ptr<const Folder> open_folder(const std::filesystem::path& path,
                                                      Mapping mapping = Mapping::allowed);

}  // namespace safemap
