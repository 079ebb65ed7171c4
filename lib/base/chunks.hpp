// Splits indices into chunks as torch.chunk splits.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// Returns the first index of chunk `number` of `count` chunks, which must be at least 1. All chunks have
/// ceil(size / count) indices, except that the last ones have less, or none. Returns `size` for the end of the last
/// chunk and for chunks without indices. Does not overflow.
constexpr std::uint64_t chunk_start(std::uint64_t size, std::uint64_t count, std::uint64_t number) noexcept {
    const std::uint64_t length = size / count + (size % count == 0 ? 0 : 1);
    return length == 0 || number > size / length ? size : number * length;
}

}  // namespace safemap::SAFEMAP_ABI
