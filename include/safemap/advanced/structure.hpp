// What a checkpoint is besides names and tensors.
#pragma once

#include <safemap/checkpoint.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Returns human sentences about what is in the tree of a `.pt` only, and lost where tensors are saved without a
/// structure document: plain values, attributes, which tensors are Parameters, and containers in several places. Valid
/// as long as the checkpoint or a copy of it.
SAFEMAP_API const std::vector<std::string>& only_in_tree(const Checkpoint& checkpoint) noexcept;
const std::vector<std::string>& only_in_tree(const Checkpoint&& checkpoint) = delete;

/// Returns the structure document of a checkpoint as JSON; docs/format.md specifies it. Without a tree it is one of all
/// names as a dictionary. Tensors that are not selected are opaque objects in it. Linear. Throws structure_too_large.
SAFEMAP_API std::string structure_of(const Checkpoint& checkpoint);

}  // namespace safemap::SAFEMAP_ABI
