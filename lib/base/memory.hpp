// Tells where the bytes of a source are, if they are in memory from the start.
#pragma once

#include <safemap/source.hpp>

#include <cstddef>

namespace safemap::SAFEMAP_ABI {

/// Returns the address of the first byte of a memory_source(), and null for any other source. Maps nothing.
const std::byte* address_of(const Source& source) noexcept;

}  // namespace safemap::SAFEMAP_ABI
