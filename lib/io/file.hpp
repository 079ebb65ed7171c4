// A regular file that is open for reading.
#pragma once

#include "io/descriptor_cache.hpp"

#include <safemap/bytes.hpp>

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// The identity of a file when it was opened.
struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    std::uint64_t size = 0;
    std::int64_t modified_ns = 0;  ///< nanoseconds since 1970

    friend bool operator==(const Identity&, const Identity&) = default;
};

Identity identity_of(const struct stat& status) noexcept;
/// Returns text for comparisons inside one process.
std::string text_of(const Identity& identity);
/// Returns text without the device number, which changes at a reboot. Source::identity() returns this text, and files
/// on the disk hold it.
std::string lasting_text_of(const Identity& identity);

/// A file opened by name or by descriptor, and its identity then. Keeps its descriptor open while the process has
/// enough of them; see CachedDescriptor. Const members may be called from several threads at once.
class File {
public:
    /// Opens `name` relative to `folder`, or to the working directory if `folder` is null. Messages call the file
    /// `path`. Never waits, not even for a pipe. Throws invalid_argument if it is not a regular file.
    File(Handle folder, const std::string& name, std::string path);

    /// Takes a file that is already open. It stays open for the lifetime of this object.
    File(Handle opened, std::string path);

    const std::string& path() const noexcept { return path_; }
    const Identity& identity() const noexcept { return identity_; }
    std::uint64_t size() const noexcept { return identity_.size; }

    /// Returns the descriptor, and opens the file again if the descriptor was closed. Throws as the constructor does;
    /// file_changed if another file has the name now.
    Handle descriptor() const;
    /// Reads as Source::read_at() does.
    void read_at(std::uint64_t offset, std::span<std::byte> into) const;
    /// Reads as Source::read_scattered() does.
    void read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const;
    /// Throws file_truncated if `extent` is not inside the file as it was when it was opened.
    void require_inside(Extent extent) const;
    /// Throws file_changed if the file has changed since it was opened.
    void require_unchanged() const;

private:
    void identify(const Handle& handle);
    Handle open() const;
    /// Returns the error of a file that cannot be opened. Says if it is a link that leads nowhere.
    Error not_opened(int number, int folder) const;
    Handle open_again() const;
    struct stat status_of(const Handle& handle) const;
    void require_same(const Identity& now) const;
    Error resized(std::uint64_t size_now) const;

    Handle folder_;
    std::string name_;
    std::string path_;
    Handle given_;  // given by the caller; it cannot be opened again
    mutable CachedDescriptor descriptor_;
    Identity identity_;
};

}  // namespace safemap::SAFEMAP_ABI::io
