// A file that is being written: its space first, then its bytes in any order from any thread, then the disk.
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
    /// Creates `name` in the folder open as `folder`, with the permissions that the umask leaves; it must not exist.
    /// See finish() for `durable`.
    static OutputFile create(int folder, const std::string& name, bool durable = true);
    /// Takes a file that is open for writing and empty.
    explicit OutputFile(Descriptor descriptor, bool durable = true) noexcept
        : descriptor_(std::move(descriptor)), durable_(durable) {}

    int descriptor() const noexcept { return descriptor_.number(); }

    /// Reserves the space, so that a full disk is known before the first byte is written, and blocks are laid out in
    /// one go. Where the file system cannot, only the size is set. A full disk is told with what was wanted and what is
    /// free.
    void allocate(std::uint64_t size) const;
    /// From now on writes pass the page cache by, as far as they are whole pages at an address that lies in its page as
    /// the offset does in its own. Where the file system cannot, nothing changes.
    void bypass_cache();
    /// Writes all of `bytes`. May be called from several threads at once.
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
    /// The same file as it is now, for reading; messages call it `path`.
    File reader(std::string path) const;
    /// Brings the data to the disk if the file is durable; else the kernel does that later. Closes the file.
    void finish();

private:
    Error failed(int number, const std::string& doing, std::uint64_t given_back = 0) const;
    Descriptor opened_again(int flags) const;
    std::size_t write_around(std::uint64_t offset, std::span<const std::byte> bytes) const;

    Descriptor descriptor_;
    Descriptor around_;  ///< the same file, opened with O_DIRECT
    bool durable_;
};

/// Returns whether that many bytes are better written past the page cache: more than 512 MiB, or than a sixteenth of
/// the memory. Each page of the cache has to be allocated, which takes seconds for a gigabyte where a virtual machine
/// has given the memory back to its host: 1.16 GB onto ext4 took 0.5 s past the cache and 1.3 to 3.6 s through it.
/// Above a tenth of the memory, the kernel also holds writers back: 3.8 GB took 2.0 to 3.7 s past the cache and 2.1 to
/// 17 s through it (docs/performance.md).
bool better_around_cache(std::uint64_t bytes);

/// Writes past the cache begin and end at multiples of this, in the file and in memory.
inline constexpr std::size_t direct_alignment = 4096;

/// Gives a file in the open `folder` the owner of `wanted`. Owners are given away by few: what is not permitted stays
/// as it is, the group on its own if need be.
void give_owner(int folder, const char* name, const struct stat& wanted);

/// Brings a directory's entries to the disk, where the file system knows such a thing.
void sync_folder(int folder);

}  // namespace safemap::SAFEMAP_ABI::io
