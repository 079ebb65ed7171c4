// Computes which elements of its base a strided view touches, and checks indices.
#pragma once

#include <safemap/advanced/strides.hpp>
#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace safemap::SAFEMAP_ABI {

/// The lowest and the highest element number that a view touches.
struct Reach {
    std::int64_t first = 0;
    std::int64_t last = 0;
};

/// Returns the reach of a view with elements; nothing if the numbers overflow.
std::optional<Reach> reach_of(const StridedView& view) noexcept;

/// Returns the index that `asked` means in Python: a negative number counts from the end. Throws index_out_of_range.
std::int64_t index_in_dimension(std::int64_t asked, std::uint64_t dimension, std::size_t axis);

/// Returns true if a view of a sub-byte dtype consists of ranges that start and end at whole bytes.
bool cuts_whole_bytes(Dtype dtype, const StridedView& view) noexcept;

}  // namespace safemap::SAFEMAP_ABI
