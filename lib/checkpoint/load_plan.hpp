// Parts of a load plan: the tensors that a model expects, with their ties as numbers, and tensors of one value for
// those that are missing. The values are generated when they are read.
#pragma once

#include <safemap/lazy_tensor.hpp>
#include <safemap/plan.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns for each tensor the number of the tensor that it is an alias of, or its own number if it is not an alias.
/// Throws expectation_bad_field, shape_overflow and partial_byte for an invalid expectation.
std::vector<std::uint32_t> checked_roots(std::span<const ExpectedTensor> expected);

/// Returns the bits of a quiet NaN, as torch's casts give it; for a complex dtype, the bits of one part. Returns
/// nothing if the dtype has no NaN.
std::optional<std::uint64_t> nan_bits(Dtype dtype) noexcept;

/// Returns a tensor of zeros that takes no memory for its values. The size of the shape in bytes must be representable.
LazyTensor zeros(std::string name, Dtype dtype, const Shape& shape);
/// Returns a tensor of NaN, in the same way. The dtype must have a NaN.
LazyTensor nans(std::string name, Dtype dtype, const Shape& shape);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
