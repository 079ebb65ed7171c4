// Strided views of a sequence of elements.
#pragma once

#include <safemap/shape.hpp>

#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Strides of a contiguous row-major tensor. The shape's element_count must exist.
SAFEMAP_API Strides row_major(const Shape& shape);
/// Whether the elements stand one after the other in row-major order; dimensions of one element do not matter,
/// and a tensor without elements is contiguous.
SAFEMAP_API bool is_contiguous(const Shape& shape, const Strides& strides) noexcept;

/// A strided look at a sequence of elements: element (i, j, …) is number offset + i·strides[0] + j·strides[1] + …
struct StridedView {
    Shape shape = {};
    Strides strides = {};
    std::int64_t offset = 0;
};

/// The view that `slices` cut out of `view`; dimensions without a slice are whole.
/// Throws too_many_indices, index_out_of_range, invalid_argument (step 0).
SAFEMAP_API StridedView slice(const StridedView& view, std::span<const Slice> slices);

}  // namespace safemap::SAFEMAP_ABI
