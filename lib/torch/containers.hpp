// Builds Python's containers from opcodes and from calls of their classes.
#pragma once

#include "torch/tree_draft.hpp"

#include <optional>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// Builds a list, tuple, set, frozenset or torch.Size from its items. A set keeps the first of equal members, as in
/// Python.
StateTree::Sequence sequence(TreeDraft& draft, StateTree::Sequence::Kind kind, std::span<const PickleGraph::Id> items,
                             StateTree::NodeId self);
/// Builds a dictionary from alternating keys and values, as Python does: a repeated key keeps its place and gets the
/// new value.
StateTree::Dict dictionary(TreeDraft& draft, std::span<const PickleGraph::Id> items, StateTree::NodeId self);

/// Builds the container that a call of its class makes. Returns nothing if `function` is not such a class, or if the
/// call has arguments that pickles of the class do not have.
std::optional<StateTree::Node> container_call(TreeDraft& draft, std::string_view function,
                                              const PickleGraph::Call& said, StateTree::NodeId self);
/// Returns true if container_call() knows the function.
bool is_container(std::string_view function) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
