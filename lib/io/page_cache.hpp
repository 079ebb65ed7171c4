// What the kernel holds of a file in memory, and how it is told what to hold.
#pragma once

#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace safemap::SAFEMAP_ABI::io {

/// How many bytes of a mapped range, of a file open as `descriptor`, are in memory, in whole pages: all of them only
/// where every page is. Nothing where the kernel does not tell, or only its owner.
std::optional<std::uint64_t> resident_in(std::span<const std::byte> mapped, int descriptor) noexcept;
/// The same without a mapping, where the kernel can tell (since Linux 6.5).
std::optional<std::uint64_t> resident_in(Extent extent, int descriptor) noexcept;

/// Reads a mapped range into memory, with no access to it. False where that could not be done, for whatever reason.
bool populate(std::span<const std::byte> mapped) noexcept;

/// Takes a shared mapping's hands off a range: nobody's bytes change, and pages that no other mapping uses can go.
/// Never of a private mapping, which would lose what was written to it.
void unmap_pages(std::span<const std::byte> mapped) noexcept;
/// Lets the kernel drop what it has cached of a range of a file, but for pages that are mapped or not yet written.
void drop_cache(Extent extent, int descriptor) noexcept;

}  // namespace safemap::SAFEMAP_ABI::io
