// The structure of a checkpoint: the nested tree around its tensors.
#pragma once

#include <safemap/checkpoint.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Returns sentences for a person about facts that only the tree of a `.pt` has, and that are lost if its tensors are
/// saved without a structure document: plain values, attributes, which tensors are Parameters, and containers that
/// occur in several places. Valid while the checkpoint or a copy of it lives.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("checkpoint.pt");
///     for (const std::string& fact : safemap::lost_without_structure(checkpoint)) std::puts(fact.c_str());
[[nodiscard]] SAFEMAP_API const std::vector<std::string>& lost_without_structure(const Checkpoint& checkpoint) noexcept;
const std::vector<std::string>& lost_without_structure(const Checkpoint&& checkpoint) = delete;

/// Returns the structure document of a checkpoint as JSON; docs/format.md specifies it. Without a tree, the document is
/// a dictionary of all names. Tensors that are not selected are opaque objects in it. Linear. Throws
/// structure_too_large.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("checkpoint.pt");
///     std::string json = safemap::structure_of(checkpoint);
[[nodiscard]] SAFEMAP_API std::string structure_of(const Checkpoint& checkpoint);

}  // namespace safemap::SAFEMAP_ABI
