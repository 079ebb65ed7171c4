// Compares an opened checkpoint with what a forged one holds.
#pragma once

#include "distributed/zero_forge.hpp"
#include "doctest_safemap.hpp"

#include <safemap/checkpoint.hpp>
#include <safemap/lazy_tensor.hpp>

#include <string>

namespace zero_forge {

std::string bytes_of(const safemap::LazyTensor& tensor);

/// Checks one tensor, to the bit.
void check_tensor(const safemap::Checkpoint& checkpoint, const std::string& name, const Expected& wanted);

/// Checks that a checkpoint has these tensors, and no other.
void check_tensors(const safemap::Checkpoint& checkpoint, const Tensors& wanted);

}  // namespace zero_forge
