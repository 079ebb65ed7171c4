// Makes tensors of one value. The values are generated when they are read.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns the bits of a quiet NaN, as torch's casts give it; for a complex dtype, the bits of one part. Returns
/// nothing if the dtype has no NaN.
std::optional<std::uint64_t> nan_bits(Dtype dtype) noexcept;

/// Returns a tensor of zeros that takes no memory for its values. The size of the shape in bytes must be representable.
LazyTensor zeros(std::string name, Dtype dtype, const Shape& shape);
/// Returns a tensor of NaN, in the same way. The dtype must have a NaN.
LazyTensor nans(std::string name, Dtype dtype, const Shape& shape);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
