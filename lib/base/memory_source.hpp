// Tells sources of memory from others: their bytes can be written without a buffer between.
#pragma once

#include <safemap/source.hpp>

#include <cstddef>
#include <optional>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Returns the bytes of a range of a source that memory_source() has made, which are valid while the source lives.
/// Returns nothing for any other source: the addresses that Source::map() gives may be those of a file, which raise a
/// signal after another program has truncated it.
std::optional<std::span<const std::byte>> bytes_in_memory(const Source& source, Extent extent);

}  // namespace safemap::SAFEMAP_ABI
