// Queries and controls which parts of a file the kernel holds in memory.
#pragma once

#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace safemap::SAFEMAP_ABI::io {

/// Returns how many bytes of a mapped range are in memory; `descriptor` is the mapped file. Counts whole pages: the
/// result is the full size only if every page is in memory. Returns nothing if the kernel does not report it, or
/// reports it to the file's owner only.
std::optional<std::uint64_t> resident_in(std::span<const std::byte> mapped, int descriptor) noexcept;
/// Returns the same for a file that is not mapped (since Linux 6.5).
std::optional<std::uint64_t> resident_in(Extent extent, int descriptor) noexcept;

/// Reads a mapped range into memory without accessing it. Returns false if that fails, for whatever reason.
bool populate(std::span<const std::byte> mapped) noexcept;

/// Drops a range of a shared mapping from this process. No bytes change; pages that no other mapping uses can be
/// evicted. Not for a private mapping: the changes made to it would be lost.
void unmap_pages(std::span<const std::byte> mapped) noexcept;
/// Asks the kernel to evict the cached pages of a range of a file. Pages that are mapped or not yet written stay.
void drop_cache(Extent extent, int descriptor) noexcept;

}  // namespace safemap::SAFEMAP_ABI::io
