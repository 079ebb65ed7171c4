// Goes through trees: the nodes that a node refers to, the children that names lead to, and a walk without recursion,
// because files may nest containers as deep as they like.
#pragma once

#include "state/names.hpp"

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

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

/// Returns the number of nodes of a tree, and of places where nodes refer to them: what a walk goes through that enters
/// each node once. Linear.
inline std::uint64_t places_in(const StateTree& tree) {
    std::uint64_t places = tree.size();
    for (StateTree::NodeId id = 0; id < tree.size(); ++id)
        for_each_child(tree[id], [&](StateTree::NodeId) { ++places; });
    return places;
}

/// Calls visit(id, segment) for the items of a sequence, the values of a dictionary and the parts of an object, in
/// order. segment() spells the part of a name that leads to the child.
template <class Visit> void for_each_named_child(const StateTree& tree, const StateTree::Node& node, Visit&& visit) {
    if (const auto* const sequence = std::get_if<StateTree::Sequence>(&node))
        for (std::size_t i = 0; i < sequence->items.size(); ++i)
            visit(sequence->items[i], [&] { return item_segment(sequence->kind, i); });
    if (const auto* const dict = std::get_if<StateTree::Dict>(&node))
        for (std::size_t i = 0; i < dict->items.size(); ++i)
            visit(dict->items[i].second, [&] { return key_segment(tree[dict->items[i].first], i); });
    if (const auto* const opaque = std::get_if<StateTree::Opaque>(&node))
        for (const auto& part : opaque->children) visit(part.second, [&] { return child_segment(part.first); });
}

/// The containers that a walk is in, the innermost last. `Container` says what the walk needs to know of one.
template <class Container> class Walk {
public:
    /// Keeps a reference to `path`, the path of the node that is visited.
    explicit Walk(std::string& path) noexcept : path_(path) {}

    /// Goes into the container that is visited.
    void enter(Container container) { open_.push_back({path_.size(), std::move(container)}); }
    std::size_t depth() const noexcept { return open_.size(); }
    /// The innermost container. Valid until the next one is entered.
    Container& inner() noexcept { return open_.back().container; }

    /// Walks to the end of all containers. next(container) appends the segment of its next child to the path and
    /// returns the child, or nothing. visit(child) may enter the child. leave(container) is called at
    /// the end of a container.
    template <class Next, class Visit, class Leave> void run(Next&& next, Visit&& visit, Leave&& leave) {
        while (!open_.empty()) {
            path_.resize(open_.back().path_size);
            if (auto child = next(inner())) {
                visit(*child);
            } else {
                leave(inner());
                open_.pop_back();
            }
        }
    }

private:
    struct Open {
        std::size_t path_size;  // its length before the segments of children
        Container container;
    };

    std::string& path_;
    std::vector<Open> open_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::state
