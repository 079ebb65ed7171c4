// Calls of NumPy's functions as nodes of the tree: tensors where arrays can be such, else objects of their parts.
#pragma once

#include "torch/numpy.hpp"
#include "torch/tensor_calls.hpp"

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// An array, a scalar or a dtype; nothing where it is another call.
std::optional<StateTree::Node> numpy_call(TensorContext& context, PickleGraph::Id id, std::string_view function,
                                          const PickleGraph::Call& said, ObjectParts& parts);
/// Throws as numpy_tensor() does.
StateTree::Node numpy_array_node(TensorContext& context, const NumpyArray& array, ObjectParts& parts);

}  // namespace safemap::SAFEMAP_ABI::torch
