// The array of nodes: adding, finding, changing, and taking a part of it. What names them is lib/state/flatten.cpp.
#include "base/text.hpp"
#include "state/children.hpp"
#include "state/names.hpp"

#include <safemap/error.hpp>
#include <safemap/state_tree.hpp>

#include <type_traits>

namespace safemap {

namespace {

using NodeId = StateTree::NodeId;

/// Where a container has the child that `segment` names; past the end where it has none.
std::size_t place_of(const StateTree& tree, const StateTree::Node& node, std::string_view segment) {
    const auto found_by = [&](const auto& all, auto&& segment_of) {
        std::size_t i = 0;
        while (i < all.size() && segment_of(all[i], i) != segment) ++i;
        return i;
    };
    if (const auto* sequence = std::get_if<StateTree::Sequence>(&node))
        return found_by(sequence->items, [&](NodeId, std::size_t i) { return state::item_segment(sequence->kind, i); });
    if (const auto* dict = std::get_if<StateTree::Dict>(&node))
        return found_by(dict->items,
                        [&](const auto& item, std::size_t i) { return state::key_segment(tree[item.first], i); });
    if (const auto* opaque = std::get_if<StateTree::Opaque>(&node))
        return found_by(opaque->children,
                        [&](const auto& part, std::size_t) { return state::child_segment(part.first); });
    return 0;
}

/// The child there; null where there is none.
template <class Node> auto child_at(Node& node, std::size_t place) {
    std::conditional_t<std::is_const_v<Node>, const NodeId, NodeId>* child = nullptr;
    if (auto* const sequence = std::get_if<StateTree::Sequence>(&node))
        child = place < sequence->items.size() ? &sequence->items[place] : nullptr;
    if (auto* const dict = std::get_if<StateTree::Dict>(&node))
        child = place < dict->items.size() ? &dict->items[place].second : nullptr;
    if (auto* const opaque = std::get_if<StateTree::Opaque>(&node))
        child = place < opaque->children.size() ? &opaque->children[place].second : nullptr;
    return child;
}

struct Split {
    std::string_view above;
    std::string_view segment;
};
Split split(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    if (slash == path.npos) return {{}, path};
    return {path.substr(0, slash), path.substr(slash + 1)};
}

[[noreturn]] void no_place(std::string_view path) {
    throw Error(Errc::invalid_argument, "nothing can be put at " + quoted(path) + " in the tree");
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
    NodeId at = root_;
    for (std::size_t slash = 0; slash != path.npos;) {
        slash = path.find('/');
        const Node& node = nodes_[at];
        const NodeId* const child = child_at(node, place_of(*this, node, path.substr(0, slash)));
        if (child == nullptr) return std::nullopt;
        at = *child;
        if (slash != path.npos) path.remove_prefix(slash + 1);
    }
    return at;
}

void StateTree::put(std::string_view path, NodeId node) {
    if (path.empty()) return set_root(node);
    const auto [above, segment] = split(path);
    const auto parent = find(above);
    if (!parent) no_place(path);
    Node& container = nodes_[*parent];
    const std::size_t place = place_of(*this, container, segment);
    if (NodeId* const child = child_at(container, place)) {
        *child = node;
    } else if (auto* const sequence = std::get_if<Sequence>(&container)) {
        if (state::item_segment(sequence->kind, place) != segment) no_place(path);
        sequence->items.push_back(node);
    } else if (std::holds_alternative<Dict>(container)) {
        auto key = state::key_of(segment);
        if (!key || state::key_segment(*key, 0) != segment) no_place(path);
        const NodeId name = add(std::move(*key));  // which moves the nodes
        std::get<Dict>(nodes_[*parent]).items.emplace_back(name, node);
    } else if (auto* const opaque = std::get_if<Opaque>(&container)) {
        const auto name = state::key_of(segment);
        const auto* const text = name ? std::get_if<std::string>(&*name) : nullptr;
        if (text == nullptr || state::child_segment(*text) != segment) no_place(path);
        opaque->children.emplace_back(*text, node);
    } else {
        no_place(path);
    }
}

bool StateTree::erase(std::string_view path) {
    const auto [above, segment] = split(path);
    const auto parent = path.empty() ? std::nullopt : find(above);
    if (!parent) return false;
    Node& container = nodes_[*parent];
    const std::size_t place = place_of(*this, container, segment);
    if (child_at(container, place) == nullptr) return false;
    const auto offset = static_cast<std::ptrdiff_t>(place);
    if (auto* const sequence = std::get_if<Sequence>(&container))
        sequence->items.erase(sequence->items.begin() + offset);
    if (auto* const dict = std::get_if<Dict>(&container)) dict->items.erase(dict->items.begin() + offset);
    if (auto* const opaque = std::get_if<Opaque>(&container)) {
        opaque->children.erase(opaque->children.begin() + offset);
        if (place >= opaque->arguments) return true;
        --opaque->arguments;
        for (std::size_t i = place; i < opaque->arguments; ++i) opaque->children[i].first = std::to_string(i);
    }
    return true;
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
