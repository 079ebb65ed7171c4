// Checks the tensors that a model expects and resolves their ties to numbers.
#pragma once

#include <safemap/plan.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns for each tensor the number of the tensor that it is an alias of, or its own number if it is not an alias.
/// Throws expectation_bad_field, shape_overflow and partial_byte for an invalid expectation.
std::vector<std::uint32_t> checked_roots(std::span<const ExpectedTensor> expected);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
