// Maps dtypes that safetensors has no name for to dtypes of the same bits that it has. A structure document stores such
// tensors in them.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <optional>

namespace safemap::SAFEMAP_ABI {

/// Returns the dtype that stores an element, or half of a complex element: I8 for qint8, F64 for complex128. Returns
/// `dtype` itself if safetensors has a name for it.
Dtype raw_dtype(Dtype dtype) noexcept;
/// Returns the shape of a tensor of `dtype` that is stored in raw_dtype(dtype). A complex tensor has a last dimension
/// of 2: the real and the imaginary part.
Shape raw_shape(Dtype dtype, const Shape& shape);
/// Returns the shape of the tensor of `dtype` that is stored in the shape `raw`; nothing if that is impossible.
std::optional<Shape> shape_of_raw(Dtype dtype, const Shape& raw);

}  // namespace safemap::SAFEMAP_ABI
