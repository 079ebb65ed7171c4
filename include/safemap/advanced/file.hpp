// Files and file descriptors as sources, and files as sinks.
#pragma once

#include <safemap/sink.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// How the bytes of a file are made addressable. Mappings are read-only, except those of `private_copy`.
enum class Mapping : std::uint8_t {
    /// Maps files on local disks. Reads files on network and FUSE file systems: if the server goes away or the file is
    /// truncated there, touching a view would block or kill the process.
    automatic,
    allowed,  ///< maps files on every file system
    never,    ///< reads every file
    /// Makes a private copy (see Access::private_copy). Maps where `automatic` maps, copy on write: a page that is
    /// written to becomes memory of this process, which no file and no other mapping sees. Elsewhere, map() reads the
    /// requested bytes into memory, each byte once, and throws what reading throws.
    private_copy
};

/// Opens a regular file for reading. Follows symbolic links, and sets O_CLOEXEC. Returns a source with the size and the
/// identity that the file has now; if the file is shorter when it is read, the read throws file_changed. Throws
/// path_not_found; invalid_argument for a folder, a pipe or a device; permission_denied; too_many_open_files;
/// out_of_memory; io_error.
///
/// The mapping or private copy is made once, at the first map(), is shared by all its users, and is freed by the last.
/// read_at() always reads the file, and does not see what was written to a private copy.
///
/// Open files use at most half of the process's descriptors (the soft RLIMIT_NOFILE). Beyond that, the least recently
/// used file is closed, and reopened when it is read; if another file has its path by then, the read throws
/// file_changed. A file that is still open can be read even after it was deleted or replaced. Files of
/// open_descriptor() are not counted and stay open.
///
/// Example:
///     std::shared_ptr<const safemap::Source> source = safemap::open_file("model.safetensors");
///     std::vector<std::byte> bytes(8);
///     source->read_at(0, bytes);
[[nodiscard]] SAFEMAP_API std::shared_ptr<const Source> open_file(const std::filesystem::path& path,
                                                                  Mapping mapping = Mapping::automatic);
/// Returns a source for a file that the caller has open for reading, such as one from memfd_create() or from another
/// process. Duplicates the descriptor: the caller keeps and closes its own, and the file offset is not changed. `name`
/// is used in messages. Throws invalid_argument if the descriptor is not a regular file or not open for reading;
/// too_many_open_files; out_of_memory; io_error.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const Source> open_descriptor(int descriptor, std::string name,
                                                                        Mapping mapping = Mapping::automatic);

/// How file_sink() puts a file in its place. SaveOptions documents both fields.
struct FileSinkOptions {
    bool overwrite = false;
    bool durable = true;
};

/// Returns a sink that writes the file `path` as a save to that path does: it fills a hidden file beside `path`, and
/// commit() flushes it to disk (unless `durable` is false) and renames it, so that the file appears complete or not at
/// all. Throws invalid_argument if `path` is empty or ends in a slash.
///
/// allocate() of the sink throws already_exists, path_not_found, busy, no_space, permission_denied and io_error; its
/// commit() throws what a save throws after it has copied the tensors. The report of a save to this sink lacks the
/// notes about the commit (leftover files that could not be removed).
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("model.pt");
///     auto sink = safemap::file_sink("model.safetensors", {.overwrite = true});
///     safemap::SaveReport report = safemap::save(*sink, checkpoint);
[[nodiscard]] SAFEMAP_API std::shared_ptr<Sink> file_sink(const std::filesystem::path& path,
                                                          const FileSinkOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
