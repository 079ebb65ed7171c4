// Strides, and strided views of a sequence of elements.
#pragma once

#include <safemap/shape.hpp>

#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Returns the strides of a contiguous row-major tensor, in elements. element_count() of the shape must exist. A
/// dimension of size 0 counts as 1, as in PyTorch and NumPy: [3, 0, 2] has strides [2, 2, 1].
[[nodiscard]] SAFEMAP_API Strides row_major(const Shape& shape);
/// Returns true if the elements are contiguous in row-major order. Strides of dimensions of size 1 do not matter, and a
/// tensor without elements is contiguous.
[[nodiscard]] SAFEMAP_API bool is_contiguous(const Shape& shape, const Strides& strides) noexcept;

/// A strided view of a sequence of elements: element (i, j, …) is number offset + i·strides[0] + j·strides[1] + …
/// Offset and strides count elements. Owns no elements.
///
/// Example:
///     safemap::Shape shape = {4, 6};
///     safemap::StridedView whole{shape, safemap::row_major(shape), 0};
///     safemap::StridedView column = safemap::slice(whole, std::vector<safemap::Slice>{{}, {.start = 1, .stop = 2}});
struct [[nodiscard]] StridedView {
    Shape shape = {};
    Strides strides = {};
    std::int64_t offset = 0;
};

/// Returns the part of `view` that `slices` select; dimensions without a slice are kept whole. Indices have the meaning
/// they have in Python. Throws too_many_indices, index_out_of_range, and invalid_argument for step 0.
SAFEMAP_API StridedView slice(const StridedView& view, std::span<const Slice> slices);

}  // namespace safemap::SAFEMAP_ABI
