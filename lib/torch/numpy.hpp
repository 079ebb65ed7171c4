// NumPy in pickles: arrays, scalars and dtypes, as ndarray.__reduce__, generic.__reduce__ and dtype.__reduce__ of NumPy
// 1 and 2 write them (numpy/_core/src/multiarray). Arrays are tensors where they can be, else objects of their parts.
#pragma once

#include "torch/tensor_calls.hpp"

namespace safemap::SAFEMAP_ABI::torch {

/// An array, a scalar or a dtype; nothing where it is another call.
std::optional<StateTree::Node> numpy_call(TensorContext& context, PickleGraph::Id id, std::string_view function,
                                          const PickleGraph::Call& said, ObjectParts& parts);
/// Nothing where the call makes no array. Throws bad_tensor, shape_overflow, storage_too_short.
std::optional<StateTree::Node> numpy_array(TensorContext& context, const PickleGraph::Call& said, ObjectParts& parts);

}  // namespace safemap::SAFEMAP_ABI::torch
