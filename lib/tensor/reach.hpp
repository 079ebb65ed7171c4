// Which elements of a base a strided view touches.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <optional>

namespace safemap {

/// The lowest and the highest element number that a view touches.
struct Reach {
    std::int64_t first = 0;
    std::int64_t last = 0;
};

/// For a view with elements; nothing where the numbers overflow.
std::optional<Reach> reach_of(const StridedView& view) noexcept;

/// Whether a view of a sub-byte dtype consists of ranges that start and end at whole bytes.
bool cuts_whole_bytes(Dtype dtype, const StridedView& view) noexcept;

}  // namespace safemap
