// The mean of tensors that several ranks hold, computed while it is read.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns the mean of F32 tensors of one shape, bit for bit as ds_to_universal computes it: their sum in ascending
/// order, divided by their number. Reads nothing. Reading a part reads that part of every tensor, a block at a time.
LazyTensor mean_of(std::string name, std::span<const LazyTensor* const> tensors);

}  // namespace safemap::SAFEMAP_ABI::distributed
