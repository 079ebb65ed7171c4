// Tensors of one value, made where they are read.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// The bits of a quiet NaN, as torch's casts give it; of a complex dtype, of one part. Nothing where there is no NaN.
std::optional<std::uint64_t> nan_bits(Dtype dtype) noexcept;

/// Takes no memory for its values. The shape has to have a size in bytes.
LazyTensor zeros(std::string name, Dtype dtype, const Shape& shape);
/// The dtype has to have a NaN.
LazyTensor nans(std::string name, Dtype dtype, const Shape& shape);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
