// Where bytes come from: a Source is a range of bytes that can be read at any place, so that a checkpoint can lie in
// files, in memory, or wherever a callback of the caller finds it.
#pragma once

#include <safemap/api.hpp>
#include <safemap/bytes.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Bytes, and whatever keeps them alive. Copying shares.
struct SharedBytes {
    std::span<const std::byte> bytes = {};
    std::shared_ptr<const void> owner = {};
    /// Whether whoever holds them may write to them: private memory, behind no file.
    bool writable = false;
};

/// How much of some bytes is in memory already.
struct Residency {
    std::uint64_t resident = 0;  ///< bytes that no disk is waited for, counted in whole pages
    std::uint64_t total = 0;     ///< bytes of which that is known; 0: nothing is known

    Residency& operator+=(const Residency& other) noexcept {
        resident += other.resident;
        total += other.total;
        return *this;
    }
};

/// A sequence of bytes of fixed size. All members may be called from several threads at once.
class SAFEMAP_API Source {
public:
    virtual ~Source() = default;
    Source() = default;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

    /// What an error message calls it: the path of a file.
    virtual const std::string& name() const noexcept = 0;
    /// In bytes.
    virtual std::uint64_t size() const noexcept = 0;
    /// Fills `into` with the bytes from `offset` on, all of it or an Error: file_truncated where the range is
    /// not inside size(), file_changed where the file shrank since or another stands in its place, io_error where
    /// reading fails. A file that was closed for want of descriptors is opened again, which throws as opening does.
    virtual void read_at(std::uint64_t offset, std::span<std::byte> into) const = 0;
    /// The bytes of `extent` without copying them, or nothing where this kind of source has no addresses.
    /// Throws as read_at does, and file_changed where a file has changed in any way by the time it is mapped, which is
    /// once. What another process does to a mapped file shows in these bytes, and truncating it under them is a SIGBUS:
    /// bulk work reads, it does not map.
    virtual std::optional<SharedBytes> map(Extent extent) const;
    /// Whether it is a file of the file system, and its offsets are the file's.
    virtual bool is_file() const noexcept { return false; }

    /// Throws file_changed where what it reads is no longer what was opened (of a file: device, inode, size or time
    /// of modification). Bulk work asks when it has read, so that what it read was there all along.
    virtual void require_unchanged() const {}

    /// Returns what tells its bytes from others, and from its own at another time. A file: inode, size and time of
    /// modification, the same after a reboot. Empty: not known, and a save that reads it cannot be continued later.
    virtual std::string identity() const { return {}; }

    // The kernel's page cache; a source that knows of none does nothing. Ranges are as for read_at.
    /// How much of `extent` is in memory. Throws as map() does: a file may be mapped to find out.
    virtual Residency residency(Extent extent) const;
    /// Brings `extent` into memory, and returns when it is there. For ranges of a few megabytes, from several threads.
    /// Throws as map() does.
    virtual void prefetch(Extent extent) const;
    /// Lets go of the memory that `extent` is cached in, where nobody else has it mapped, nor a private copy of our
    /// own. Views stay as they are: what is touched again is read again. Throws as read_at does, but reads nothing.
    virtual void evict(Extent extent) const;
};

/// A source over memory that somebody owns; `owner` is kept as long as the source or a view lives.
SAFEMAP_API std::shared_ptr<const Source> memory_source(std::string name, SharedBytes bytes);
/// A source that owns a copy-free vector.
SAFEMAP_API std::shared_ptr<const Source> memory_source(std::string name, std::vector<std::byte> bytes);
/// A source that asks `read(offset, into)` for its bytes. The function must fill all of `into` or throw, and
/// may be called from several threads at once; ranges are checked before it is called. What it throws passes through
/// whatever was reading. Throws invalid_argument where there is no function.
SAFEMAP_API std::shared_ptr<const Source> callback_source(
    std::string name, std::uint64_t size, std::function<void(std::uint64_t, std::span<std::byte>)> read);

}  // namespace safemap::SAFEMAP_ABI
