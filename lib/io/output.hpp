// A file that is being written, in three steps: space is allocated; bytes are written, in any order, from any thread;
// the file is flushed.
#pragma once

#include "io/file.hpp"
#include "io/system.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::io {

class OutputFile {
public:
    /// Creates `name` in the open `folder`, with the permissions that the umask allows. The file must not exist. See
    /// finish() for `durable`.
    static OutputFile create(int folder, const std::string& name, bool durable = true);
    /// Takes a descriptor that is open for writing. The file must be empty.
    explicit OutputFile(Descriptor descriptor, bool durable = true) noexcept
        : descriptor_(std::move(descriptor)), durable_(durable) {}

    int descriptor() const noexcept { return descriptor_.number(); }

    /// Reserves the space, so that a full disk is found before the first byte is written, and the blocks are allocated
    /// in one go. If the file system cannot reserve space, only sets the size. The error for a full disk says how much
    /// was needed and how much is free.
    void allocate(std::uint64_t size) const;
    /// Makes later writes bypass the page cache, as far as they are whole pages, and memory and file have the same
    /// offset in the page. Does nothing if the file system does not support that.
    void bypass_cache();
    /// Writes all of `bytes`. May be called from several threads at once.
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
    /// Opens the file, as it is now, for reading. Messages call it `path`.
    File reader(std::string path) const;
    /// Flushes the data to the disk if the file is durable; otherwise the kernel does that later. Closes the file.
    void finish();

private:
    Error failed(int number, const std::string& doing, std::uint64_t given_back = 0) const;
    Descriptor opened_again(int flags) const;
    std::size_t write_around(std::uint64_t offset, std::span<const std::byte> bytes) const;

    Descriptor descriptor_;
    Descriptor around_;  ///< the same file, opened with O_DIRECT
    bool durable_;
};

/// Returns true if this many bytes are written faster past the page cache: more than 512 MiB, or more than a sixteenth
/// of the memory. Each page of the cache must be allocated, which takes seconds per gigabyte if a virtual machine has
/// returned the memory to its host: 1.16 GB to ext4 took 0.5 s past the cache, 1.3 to 3.6 s through it. Above a tenth
/// of the memory, the kernel also throttles writers: 3.8 GB took 2.0 to 3.7 s past the cache, 2.1 to 17 s through it
/// (docs/performance.md).
bool prefers_direct_io(std::uint64_t bytes);

/// The alignment, in the file and in memory, of writes that bypass the page cache.
inline constexpr std::size_t direct_alignment = 4096;

/// Gives a file in the open `folder` the owner and the group of `wanted`. Few users may give files away: if the owner
/// cannot be changed, sets only the group; if that fails too, changes nothing.
void give_owner(int folder, const char* name, const struct stat& wanted);

/// Flushes the entries of a directory to the disk. Does nothing if the file system does not support that.
void sync_folder(int folder);

}  // namespace safemap::SAFEMAP_ABI::io
