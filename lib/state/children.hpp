// Visits the nodes that a node of a tree refers to.
#pragma once

#include <safemap/state_tree.hpp>

#include <cstdint>
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

/// Returns the number of nodes of a tree, and of places where nodes refer to them: what a walk that does not come to a
/// node twice goes through. Linear.
inline std::uint64_t places_in(const StateTree& tree) {
    std::uint64_t places = tree.size();
    for (StateTree::NodeId id = 0; id < tree.size(); ++id)
        for_each_child(tree[id], [&](StateTree::NodeId) { ++places; });
    return places;
}

}  // namespace safemap::SAFEMAP_ABI::state
