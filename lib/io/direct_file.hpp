// Reads of a file past the page cache.
#pragma once

#include "io/calls.hpp"
#include "io/descriptor_cache.hpp"
#include "io/file.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace safemap::SAFEMAP_ABI::io {

/// A second descriptor of a file, with O_DIRECT. It is opened by the first read. What the system refuses once is not
/// tried again: opening it so, or reading so. Thread-safe.
class DirectFile {
public:
    /// `file` must outlive this object.
    explicit DirectFile(const File& file) noexcept : file_(file) {}

    /// Reads as Source::read_direct() does. Returns false for a file of a network file system.
    bool read(std::uint64_t offset, std::span<const std::span<std::byte>> into, std::span<std::byte> scratch) const;

private:
    struct Opened {
        Handle handle;  // null: O_DIRECT is not available
        DirectAlignment alignment = {};
    };
    Opened opened() const;
    bool open(Opened& opened) const;
    void refuse() const;

    const File& file_;
    mutable CachedDescriptor descriptor_;
    mutable std::mutex mutex_;  // guards the next two
    mutable bool refused_ = false;
    mutable DirectAlignment alignment_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::io
