// Source: a sequence of bytes that a checkpoint is read from: a file, memory, or a callback of the caller.
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

/// Bytes in memory, and the owner that keeps them alive. Copies share the bytes.
struct SharedBytes {
    std::span<const std::byte> bytes = {};
    std::shared_ptr<const void> owner = {};
    /// True if holders may write to the bytes, and writing changes no file: the bytes are memory, or a mapping that
    /// copies a page when it is written to.
    bool writable = false;
};

/// The share of some bytes that is in memory.
///
/// Example:
///     safemap::Residency cached = checkpoint.residency(safemap::Selection::prefix("model.layers.0"));
///     if (cached.resident < cached.total) checkpoint.prefetch(safemap::Selection::prefix("model.layers.0"));
///     std::cout << cached.resident << " of " << cached.total << " bytes in memory\n";
struct Residency {
    std::uint64_t resident = 0;  ///< bytes that can be read without waiting for a disk, counted in whole pages
    std::uint64_t total = 0;     ///< bytes whose state is known; 0: unknown for all bytes

    Residency& operator+=(const Residency& other) noexcept {
        resident += other.resident;
        total += other.total;
        return *this;
    }
};

/// A sequence of bytes of fixed size that can be read at any offset. Derive from Source to read checkpoints from
/// storage of your own, or use memory_source() and callback_source(). Tensors share their Source and keep it alive. All
/// members may be called from several threads at once.
///
/// Example:
///     std::shared_ptr<const safemap::Source> memory = safemap::memory_source("upload.safetensors", std::move(bytes));
///     auto model = safemap::Checkpoint::open(memory);
///     std::cout << model.size() << " tensors\n";
class SAFEMAP_API Source {
public:
    virtual ~Source() = default;
    Source() = default;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

    /// Returns the name for error messages, such as the path of a file.
    virtual const std::string& name() const noexcept = 0;
    /// Returns the size in bytes.
    virtual std::uint64_t size() const noexcept = 0;
    /// Fills all of `into` with the bytes from `offset` on, or throws:
    /// - file_truncated if the range is not inside size()
    /// - file_changed if the file has become shorter, or another file is in its place
    /// - io_error if reading fails
    /// - any error of opening: a file that was closed because descriptors ran out is opened again
    virtual void read_at(std::uint64_t offset, std::span<std::byte> into) const = 0;
    /// Returns the bytes of `extent` without copying them, or nothing if this kind of source has no addresses. Throws
    /// as read_at() does, and file_changed if a file has changed in any way by the time it is mapped, which happens
    /// once. If another process writes to a mapped file, these bytes show it; if it truncates the file, touching them
    /// raises SIGBUS. Bulk operations therefore call read_at(), not map().
    [[nodiscard]] virtual std::optional<SharedBytes> map(Extent extent) const;
    /// Returns true if the source is a file of the file system, with the same offsets.
    virtual bool is_file() const noexcept { return false; }

    /// Throws file_changed if the source has changed since it was opened (a file: if its device, inode, size or time of
    /// modification differs). Bulk operations call this after reading, which shows that the bytes did not change
    /// meanwhile.
    virtual void require_unchanged() const {}

    /// Returns a text that identifies the bytes: other bytes, or the same source after a change, have another one. For
    /// a file it consists of inode, size and time of modification, and stays the same after a reboot. Empty means
    /// unknown: a save that reads such a source cannot be resumed.
    [[nodiscard]] virtual std::string identity() const { return {}; }

    // The kernel's page cache. A source without one does nothing. Ranges are as for read_at().
    /// Returns how much of `extent` is in memory. May map a file to find out, and throws as map() does.
    [[nodiscard]] virtual Residency residency(Extent extent) const;
    /// Reads `extent` into memory and returns when it is there. Meant for ranges of a few megabytes, from several
    /// threads. Throws as map() does.
    virtual void prefetch(Extent extent) const;
    /// Evicts `extent` from the page cache, except pages that another program, another open of the file or a private
    /// copy has mapped. Views stay valid: if they are touched again, the bytes are read again. Throws as read_at()
    /// does, but reads nothing.
    virtual void evict(Extent extent) const;

    /// Fills the spans of `into` one after the other with consecutive bytes from `offset` on. Spans may be empty.
    /// Throws as read_at() does. By default, calls read_at() for each span; a file is read with few system calls. Bulk
    /// operations call this for tensors that are neighbours in the source.
    virtual void read_scattered(std::uint64_t offset, std::span<const std::span<std::byte>> into) const;
    /// Does the same past the page cache (O_DIRECT): reads the bytes from the disk even if they are cached, and leaves
    /// them uncached. Returns false if this source cannot do that, now or ever, or if reading fails; then the contents
    /// of `into` are undefined, and read_scattered() says what is wrong. What is not aligned as the disk wants it is
    /// read into `scratch` and copied: it has at least 64 KiB, from a multiple of 4096 on. Throws file_truncated as
    /// read_at() does. By default, returns false. Uploads call this for large reads of a file (is_file()), if that is
    /// faster.
    [[nodiscard]] virtual bool read_direct(std::uint64_t offset, std::span<const std::span<std::byte>> into,
                                           std::span<std::byte> scratch) const;
};

/// Returns a source over memory; `bytes.owner` lives as long as the source or a view of it.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const Source> memory_source(std::string name, SharedBytes bytes);
/// Returns a source that owns `bytes`. The vector is moved, not copied.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const Source> memory_source(std::string name, std::vector<std::byte> bytes);
/// Returns a source of `size` bytes that calls `read(offset, into)` for them. The function must fill all of `into` or
/// throw, and may be called from several threads at once. Ranges are checked before it is called. Its exceptions pass
/// through the operation that reads. Throws invalid_argument for an empty function.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const Source> callback_source(
    std::string name, std::uint64_t size, std::function<void(std::uint64_t, std::span<std::byte>)> read);

}  // namespace safemap::SAFEMAP_ABI
