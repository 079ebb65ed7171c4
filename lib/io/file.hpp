// A regular file, open for reading.
#pragma once

#include "io/system.hpp"

#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap::io {

/// What a file was when it was opened.
struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    std::uint64_t size = 0;
    std::int64_t modified_ns = 0;  ///< since 1970

    friend bool operator==(const Identity&, const Identity&) = default;
};

class File {
public:
    /// `name`, relative to the folder open as `folder` (or AT_FDCWD); messages call it `path`. Never waits, whatever
    /// stands there: what is no regular file is refused with invalid_argument.
    static File open(int folder, const std::string& name, std::string path);

    const std::string& path() const noexcept { return path_; }
    int descriptor() const noexcept { return descriptor_.number(); }
    const Identity& identity() const noexcept { return identity_; }
    std::uint64_t size() const noexcept { return identity_.size; }

    /// As Source::read_at.
    void read_at(std::uint64_t offset, std::span<std::byte> into) const;
    /// Throws file_truncated where `extent` is not inside the file as it was when it was opened.
    void require_inside(Extent extent) const;
    /// Throws file_changed where the file has become shorter since.
    void require_not_shorter() const;

private:
    File(Descriptor descriptor, const struct stat& status, std::string path);
    Error shrunk(std::uint64_t size_now) const;

    Descriptor descriptor_;
    Identity identity_;
    std::string path_;
};

}  // namespace safemap::io
