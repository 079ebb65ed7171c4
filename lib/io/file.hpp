// A regular file, open for reading.
#pragma once

#include "io/kept.hpp"

#include <safemap/bytes.hpp>

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

/// What a file was when it was opened.
struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    std::uint64_t size = 0;
    std::int64_t modified_ns = 0;  ///< since 1970

    friend bool operator==(const Identity&, const Identity&) = default;
};

Identity identity_of(const struct stat& status) noexcept;
/// For comparisons inside one process.
std::string text_of(const Identity& identity);
/// Without the device, whose number changes at a reboot: as Source::identity() gives it, and for what is written down.
std::string lasting_text_of(const Identity& identity);

/// Keeps its descriptor while there are enough; see Kept. Const members may be called from several threads at once.
class File {
public:
    /// `name` relative to `folder`, or to the working directory where that is null; messages call it `path`. Never
    /// waits, whatever stands there: what is no regular file is refused with invalid_argument.
    File(Handle folder, const std::string& name, std::string path);

    /// A file that is open already, and stays open as long as this.
    File(Handle opened, std::string path);

    const std::string& path() const noexcept { return path_; }
    const Identity& identity() const noexcept { return identity_; }
    std::uint64_t size() const noexcept { return identity_.size; }

    /// The descriptor, opened again where it has been let go. Throws as opening does, and file_changed where another
    /// file stands there now.
    Handle descriptor() const;
    /// As Source::read_at.
    void read_at(std::uint64_t offset, std::span<std::byte> into) const;
    /// Throws file_truncated where `extent` is not inside the file as it was when it was opened.
    void require_inside(Extent extent) const;
    /// Throws file_changed where it is no longer what it was.
    void require_unchanged() const;

private:
    void identify(const Handle& handle);
    Handle open() const;
    Handle open_again() const;
    struct stat status_of(const Handle& handle) const;
    void require_same(const Identity& now) const;
    Error resized(std::uint64_t size_now) const;

    Handle folder_;
    std::string name_;
    std::string path_;
    Handle given_;  // by the caller: it cannot be opened again
    mutable Kept kept_;
    Identity identity_;
};

}  // namespace safemap::SAFEMAP_ABI::io
