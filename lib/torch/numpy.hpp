// Reads NumPy's arrays, scalars and dtypes as NumPy 1 and 2 pickle them (ndarray.__reduce__, generic.__reduce__ and
// dtype.__reduce__ in numpy/_core/src/multiarray). An array becomes a tensor if a tensor can have its elements, else an
// object with the array's parts.
#pragma once

#include "torch/tensor_calls.hpp"

namespace safemap::SAFEMAP_ABI::torch {

/// Returns the node of an array, a scalar or a dtype, or nothing if the call makes none of them.
std::optional<StateTree::Node> numpy_call(TensorContext& context, PickleGraph::Id id, std::string_view function,
                                          const PickleGraph::Call& said, ObjectParts& parts);
/// Returns the node of an array, or nothing if the call makes no array. Throws bad_tensor, shape_overflow,
/// storage_too_short.
std::optional<StateTree::Node> numpy_array(TensorContext& context, const PickleGraph::Call& said, ObjectParts& parts);

}  // namespace safemap::SAFEMAP_ABI::torch
