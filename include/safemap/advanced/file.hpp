// Files of the file system as sources and sinks.
#pragma once

#include <safemap/sink.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// Says how a file may be mapped, if at all: read-only, or as a private copy that can be written to. `automatic` maps
/// files on local disks. On network and FUSE file systems a server that goes away, or truncates the file, would stop or
/// kill the process at the touch of a view, so files are read there. A private copy is mapped where `automatic` maps: a
/// page is the file's until somebody writes to it; then it is memory of its own, which no file and no other mapping
/// sees. Elsewhere map() reads what it is asked for, each byte once, into memory of its own, and throws what reading
/// throws; Access::private_copy says what that costs.
enum class Mapping : std::uint8_t { automatic, allowed, never, private_copy };

/// Opens a regular file for reading (symbolic links are followed, O_CLOEXEC). Its size and identity are taken now;
/// a file that is found shorter later gives Errc::file_changed. The mapping or the copy, where one is asked for, is
/// made once, shared by all who ask, and freed by its last owner; read_at() reads the file, whatever was written to a
/// private copy of it. Throws path_not_found, invalid_argument for what is no regular file (a folder, a pipe, a
/// device), permission_denied, too_many_open_files, out_of_memory, io_error.
///
/// Open files take at most half of the descriptors that the process may have (RLIMIT_NOFILE, the soft one). Beyond
/// that the file unused for longest is closed, and opened again when it is read; it gives file_changed if another file
/// stands there by then. While it is open, a file that was deleted or replaced can still be read. Files of
/// open_descriptor() stay open and are not counted.
SAFEMAP_API std::shared_ptr<const Source> open_file(const std::filesystem::path& path,
                                                    Mapping mapping = Mapping::automatic);
/// The same of a file that the caller has open for reading, such as one of memfd_create, or one that another process
/// handed over. The descriptor is duplicated: the caller's stays the caller's, and its file offset is not touched.
/// `name` is what messages call it. Throws invalid_argument where it is no regular file or not open for reading,
/// too_many_open_files, out_of_memory, io_error.
SAFEMAP_API std::shared_ptr<const Source> open_descriptor(int descriptor, std::string name,
                                                          Mapping mapping = Mapping::automatic);

/// How file_sink() puts a file in its place; SaveOptions has the words on both.
struct FileSinkOptions {
    bool overwrite = false;
    bool durable = true;
};

/// Returns a sink that is the file `path`, as a save to that path makes it: filled in a hidden sibling, on the disk
/// when commit() returns, and there in one step or not at all. Its allocate() throws already_exists, path_not_found,
/// busy, no_space, permission_denied and io_error; its commit() what a save throws when all is copied. What a save to
/// the path notes of its commit (what could not be cleared away) is not in the report. Throws invalid_argument if
/// `path` ends in a slash.
SAFEMAP_API std::shared_ptr<Sink> file_sink(const std::filesystem::path& path, const FileSinkOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
