// Tensors whose value is another tensor's value times scales. The product is computed when it is read.
#pragma once

#include "lazy/gatherer.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/shape.hpp>

namespace safemap::SAFEMAP_ABI {

/// Numbers, and the scales that they are multiplied by.
struct ScaledNumbers {
    LazyTensor numbers;  ///< their dtype can be cast
    /// The scales: F8_E8M0, or a dtype that can be cast. Has as many dimensions as `numbers`.
    LazyTensor scales;
    /// For each dimension: how many elements of `numbers` have the same scale. Not 0. Index i of a dimension has the
    /// scale i / block, which must be inside `scales`.
    Shape block;
};

/// Maximum of the memory that a read of a product takes for each thread, in bytes, whatever the size of the tensor.
inline constexpr std::uint64_t scaled_read_memory = Gatherer::most_memory + (1216U << 10);

/// Returns an F32 tensor under the name of `numbers`: each number, cast to F32, times its scale, cast to F32. Reads
/// nothing. A read takes at most 64 Ki numbers at a time, and the scales of those. Slices read the numbers that they
/// need. Throws invalid_argument if the shapes do not fit, and shape_overflow.
LazyTensor scaled(ScaledNumbers numbers);

/// Returns the numbers and scales of a tensor that scaled() made; null for any other tensor. Valid as long as the
/// tensor.
const ScaledNumbers* scaled_numbers(const LazyTensor& tensor) noexcept;

}  // namespace safemap::SAFEMAP_ABI
