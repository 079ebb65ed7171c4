// Implements the templates of blocks.hpp.
#pragma once

#include <safemap/advanced/strides.hpp>
#include <safemap/shape.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI {

template <class Range> void for_each_range(const Shape& shape, unsigned element_bits, const Box& box, Range&& range) {
    // Trailing dimensions that the box covers completely are part of one range.
    std::size_t outer = shape.size();
    std::uint64_t row = 1;  // elements of one range
    while (outer > 0) {
        --outer;
        row *= box.extent[outer];
        if (box.extent[outer] != shape[outer]) break;
    }
    const Strides strides = row_major(shape);
    std::uint64_t rows = 1;
    for (std::size_t d = 0; d < outer; ++d) rows *= box.extent[d];
    if (row == 0 || rows == 0) return;

    const std::uint64_t row_bytes = row * element_bits / 8;
    Shape at(outer, 0);
    for (std::uint64_t r = 0; r < rows; ++r) {
        std::uint64_t element = 0;
        for (std::size_t d = 0; d < shape.size(); ++d)
            element += (box.start[d] + (d < outer ? at[d] : 0)) * static_cast<std::uint64_t>(strides[d]);
        range(element * element_bits / 8, r * row_bytes, row_bytes);
        for (std::size_t d = outer; d-- > 0;) {
            if (++at[d] < box.extent[d]) break;
            at[d] = 0;
        }
    }
}

template <class Put> void Blocks::scatter(std::uint64_t i, Put&& put) const {
    if (!ranges_) return for_each_range(shape_, element_bits_, box(i), put);
    const Extent whole = range(i);
    put(whole.offset, std::uint64_t{0}, whole.size);
}

}  // namespace safemap::SAFEMAP_ABI
