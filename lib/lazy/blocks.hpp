// Cuts a tensor into boxes that are read well: long row-major ranges where the source stands that way, tiles for
// transposes.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>

namespace safemap {

/// Boxes that cover a tensor's value, each element once. Takes no memory for them.
class Blocks {
public:
    /// `max_bytes` of value in one box at most (at least one element, or one whole byte group of a sub-byte dtype).
    Blocks(const LazyTensor& tensor, std::uint64_t max_bytes);

    std::uint64_t count() const noexcept { return count_; }
    /// The i-th box. Boxes follow each other in row-major order of their corners.
    Box box(std::uint64_t i) const;
    /// Whether each box is one contiguous range of the row-major value, and boxes follow without gaps: true except
    /// for tiles.
    bool contiguous() const noexcept { return contiguous_; }

private:
    Shape shape_;
    Shape step_;   // of a box along each dimension
    Shape grid_;   // boxes along each dimension
    std::uint64_t count_ = 0;
    bool contiguous_ = true;
};

/// The row-major ranges of a value that a box is made of: calls range(value_offset, box_offset, size), in bytes, in
/// rising order; neighbours are merged.
template <class Range>
void for_each_range(const Shape& shape, unsigned element_bits, const Box& box, Range&& range);

}  // namespace safemap

#include "lazy/blocks_ranges.hpp"
