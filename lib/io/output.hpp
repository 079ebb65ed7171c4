// A file that is being written: its space first, then its bytes in any order from any thread, then the disk.
#pragma once

#include "io/system.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap::io {

class OutputFile {
public:
    /// Creates `name` in the folder open as `folder`, with the permissions that the umask leaves; it must not exist.
    static OutputFile create(int folder, const std::string& name);
    /// Takes a file that is open for writing and empty.
    explicit OutputFile(Descriptor descriptor) noexcept : descriptor_(std::move(descriptor)) {}

    /// Reserves the space, so that a full disk is known before the first byte is written, and blocks are laid out in
    /// one go. Where the file system cannot, only the size is set.
    void allocate(std::uint64_t size) const;
    /// Writes all of `bytes`. May be called from several threads at once.
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) const;
    /// What was written is on the disk when it returns; nothing can be written afterwards.
    void finish();

private:
    Descriptor descriptor_;
};

/// Brings a directory's entries to the disk, where the file system knows such a thing.
void sync_folder(int folder);

}  // namespace safemap::io
