// Visits the nodes that a node of a tree refers to.
#pragma once

#include <safemap/state_tree.hpp>

#include <variant>

namespace safemap::SAFEMAP_ABI::state {

/// Calls visit(id) for keys, values, items, attributes and parts. If the node is not const, visit() gets a reference
/// that it may write to.
template <class Node, class Visit> void for_each_child(Node& node, Visit&& visit) {
    if (auto* const sequence = std::get_if<StateTree::Sequence>(&node))
        for (auto& item : sequence->items) visit(item);
    if (auto* const dict = std::get_if<StateTree::Dict>(&node)) {
        for (auto& [key, value] : dict->items) {
            visit(key);
            visit(value);
        }
        for (auto& [name, value] : dict->attributes) visit(value);
    }
    if (auto* const tensor = std::get_if<StateTree::Tensor>(&node);
        tensor != nullptr && tensor->attributes != StateTree::no_node)
        visit(tensor->attributes);
    if (auto* const scalar = std::get_if<StateTree::NumpyScalar>(&node)) visit(scalar->value);
    if (auto* const opaque = std::get_if<StateTree::Opaque>(&node))
        for (auto& [name, part] : opaque->children) visit(part);
}

}  // namespace safemap::SAFEMAP_ABI::state
