// Dtypes that safetensors has no name for, as dtypes of the same bits that it has: a structure document keeps tensors
// in them.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <optional>

namespace safemap::SAFEMAP_ABI {

/// Returns the dtype that an element, or half of a complex one, is stored in: I8 for qint8, F64 for complex128. A dtype
/// that safetensors has a name for is its own.
Dtype raw_dtype(Dtype dtype) noexcept;
/// Returns the shape of a tensor of `dtype` that is stored in raw_dtype(dtype): a complex one has the real and the
/// imaginary part in a last dimension of 2.
Shape raw_shape(Dtype dtype, const Shape& shape);
/// Returns the shape of the tensor of `dtype` that is stored in the shape `raw`; nothing if none is.
std::optional<Shape> shape_of_raw(Dtype dtype, const Shape& raw);

}  // namespace safemap::SAFEMAP_ABI
