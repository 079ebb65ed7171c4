// Python's containers: those that opcodes make, and those that calls of their classes do.
#pragma once

#include "torch/tree_draft.hpp"

#include <optional>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

StateTree::Sequence sequence(TreeDraft& draft, StateTree::Sequence::Kind kind, std::span<const PickleGraph::Id> items,
                             StateTree::NodeId self);
/// A dictionary of keys and values in turn, as Python makes it: a key that is there already keeps its place and gets
/// the new value.
StateTree::Dict dictionary(TreeDraft& draft, std::span<const PickleGraph::Id> items, StateTree::NodeId self);

/// What a call of a container's class gives; nothing where it is another function, or has other arguments than such
/// calls have.
std::optional<StateTree::Node> container_call(TreeDraft& draft, std::string_view function,
                                              const PickleGraph::Call& said, StateTree::NodeId self);
/// Whether container_call() knows the function.
bool is_container(std::string_view function) noexcept;

}  // namespace safemap::SAFEMAP_ABI::torch
