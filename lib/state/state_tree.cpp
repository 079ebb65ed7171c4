// The array of nodes: adding, finding, and taking a part of it. What names them is lib/state/flatten.cpp.
#include "state/children.hpp"
#include "state/names.hpp"

#include <safemap/error.hpp>
#include <safemap/state_tree.hpp>

namespace safemap {

namespace {

using NodeId = StateTree::NodeId;

/// The child of a container that `segment` names.
std::optional<NodeId> child(const StateTree& tree, NodeId parent, std::string_view segment) {
    const StateTree::Node& node = tree[parent];
    if (const auto* sequence = std::get_if<StateTree::Sequence>(&node))
        for (std::size_t i = 0; i < sequence->items.size(); ++i)
            if (state::item_segment(sequence->kind, i) == segment) return sequence->items[i];
    if (const auto* dict = std::get_if<StateTree::Dict>(&node))
        for (std::size_t i = 0; i < dict->items.size(); ++i)
            if (state::key_segment(tree[dict->items[i].first], i) == segment) return dict->items[i].second;
    if (const auto* opaque = std::get_if<StateTree::Opaque>(&node))
        for (const auto& [name, part] : opaque->children)
            if (state::child_segment(name) == segment) return part;
    return std::nullopt;
}

}  // namespace

StateTree::NodeId StateTree::add(Node node) {
    if (nodes_.size() >= no_node) {
        throw Error(Errc::pickle_too_large, "a tree of more than 2^32 - 1 values");
    }
    nodes_.push_back(std::move(node));
    return static_cast<NodeId>(nodes_.size() - 1);
}

std::optional<StateTree::NodeId> StateTree::find(std::string_view path) const {
    if (nodes_.empty()) return std::nullopt;
    if (path.empty()) return root_;
    std::optional<NodeId> at = root_;
    for (std::size_t slash = 0; at && slash != path.npos;) {
        slash = path.find('/');
        at = child(*this, *at, path.substr(0, slash));
        if (slash != path.npos) path.remove_prefix(slash + 1);
    }
    return at;
}

StateTree StateTree::subtree(NodeId root) const {
    std::vector<NodeId> numbers(nodes_.size(), no_node);
    std::vector<NodeId> order;  // of the new tree
    const auto number_of = [&](NodeId old) {
        if (numbers[old] == no_node) {
            numbers[old] = static_cast<NodeId>(order.size());
            order.push_back(old);
        }
        return numbers[old];
    };
    StateTree part;
    part.set_root(number_of(root));
    for (std::size_t i = 0; i < order.size(); ++i) {
        Node node = nodes_[order[i]];
        state::for_each_child(node, [&](NodeId& id) { id = number_of(id); });
        part.add(std::move(node));
    }
    return part;
}

}  // namespace safemap
