// A slice along one dimension.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Returns a slice of `value`: `count` indices from `first` on along a dimension, as torch.narrow does. The end of the
/// slice must fit into 63 bits.
inline LazyTensor narrow(const LazyTensor& value, std::size_t dimension, std::uint64_t first, std::uint64_t count) {
    if (first == 0 && count == value.shape()[dimension]) return value;
    std::vector<Slice> slices(dimension + 1);
    slices[dimension] = {.start = static_cast<std::int64_t>(first), .stop = static_cast<std::int64_t>(first + count)};
    return value.slice(slices);
}

}  // namespace safemap::SAFEMAP_ABI
