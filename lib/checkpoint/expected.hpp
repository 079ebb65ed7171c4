// What a model expects: checked, and its ties as numbers.
#pragma once

#include <safemap/plan.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Of each tensor, the number of the one that it is an alias of; its own number, where it is none. Throws
/// expectation_bad_field, shape_overflow and partial_byte for what no model can expect.
std::vector<std::uint32_t> checked_roots(std::span<const ExpectedTensor> expected);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
