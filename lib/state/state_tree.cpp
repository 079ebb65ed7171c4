// The array of nodes: adds, finds, changes and removes nodes, and copies a part. lib/state/flatten.cpp names them.
#include "base/text.hpp"
#include "state/modules.hpp"
#include "state/names.hpp"
#include "state/walk.hpp"

#include <safemap/error.hpp>
#include <safemap/state_tree.hpp>

#include <type_traits>

namespace safemap::SAFEMAP_ABI {

namespace {

using NodeId = StateTree::NodeId;

/// Returns the place of the child that `segment` names, or a place past the end if the container has no such child.
std::size_t place_of(const StateTree& tree, const StateTree::Node& node, std::string_view segment) {
    std::size_t place = 0;
    bool found = false;
    state::for_each_named_child(tree, node, [&](NodeId, auto&& spelled) {
        found = found || spelled() == segment;
        place += found ? 0 : 1;
    });
    return place;
}

/// Returns the child at a place, or null if there is no child.
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

/// A child, and the number of bytes of a path that lead to it.
struct Step {
    NodeId container;
    std::size_t place;
    std::size_t bytes;
};

/// Returns the step to the child that a dotted name in a module begins with: `0` in `0.conv.weight`.
std::optional<Step> step_in_module(const StateTree& tree, const StateTree::Opaque& object, std::string_view path) {
    const state::Module module = state::module_of(tree, object);
    for (const auto* entries : {&module.state, &module.not_persistent}) {
        for (const auto& entry : *entries) {
            const std::string segment = state::module_segment(tree[entry.key], entry.place);
            if (!path.starts_with(segment)) continue;
            const char separator = state::is_module(tree, tree[entry.value]) ? '.' : '/';
            if (path.size() == segment.size() || path[segment.size()] == separator)
                return Step{entry.dictionary, entry.place, segment.size()};
        }
    }
    return std::nullopt;
}

std::optional<Step> step_of(const StateTree& tree, NodeId at, std::string_view path) {
    const StateTree::Node& node = tree[at];
    if (state::is_module(tree, node))
        if (const auto step = step_in_module(tree, std::get<StateTree::Opaque>(node), path)) return step;
    const std::string_view segment = path.substr(0, path.find('/'));
    const std::size_t place = place_of(tree, node, segment);
    if (child_at(node, place) == nullptr) return std::nullopt;
    return Step{at, place, segment.size()};
}

/// Returns the last step along a path, which must not be empty.
std::optional<Step> last_step(const StateTree& tree, std::string_view path) {
    if (tree.size() == 0) return std::nullopt;
    auto step = step_of(tree, tree.root(), path);
    while (step && step->bytes < path.size()) {
        path.remove_prefix(step->bytes + 1);
        step = step_of(tree, *child_at(tree[step->container], step->place), path);
    }
    return step;
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
    throw Error(Errc::invalid_argument, "cannot put a value at " + safemap::quoted(path) + " in the tree");
}

}  // namespace

StateTree::NodeId StateTree::add(Node node) {
    if (nodes_.size() >= no_node) {
        throw Error(Errc::pickle_too_large, "the tree has more than 2^32 - 1 values");
    }
    nodes_.push_back(std::move(node));
    return static_cast<NodeId>(nodes_.size() - 1);
}

StateTree::NodeId StateTree::refuse(NodeId id) const {
    throw Error(Errc::invalid_argument, "there is no node " + (id == no_node ? "at all" : std::to_string(id)) +
                                            " in a tree of " + std::to_string(nodes_.size()));
}

std::optional<StateTree::NodeId> StateTree::find(std::string_view path) const {
    if (nodes_.empty()) return std::nullopt;
    if (path.empty()) return root_;
    const auto step = last_step(*this, path);
    if (!step) return std::nullopt;
    return *child_at(nodes_[step->container], step->place);
}

void StateTree::put(std::string_view path, NodeId node) {
    if (path.empty()) return set_root(node);
    if (const auto step = last_step(*this, path)) {
        *child_at(nodes_[step->container], step->place) = node;
        return;
    }
    const auto [above, segment] = split(path);
    const auto parent = find(above);
    // An attribute would not be part of the module's state.
    if (!parent || state::is_module(*this, (*this)[*parent])) no_place(path);
    Node& container = nodes_[*parent];
    if (auto* const sequence = std::get_if<Sequence>(&container)) {
        if (state::item_segment(sequence->kind, sequence->items.size()) != segment) no_place(path);
        sequence->items.push_back(node);
    } else if (std::holds_alternative<Dict>(container)) {
        auto key = state::key_of(segment);
        if (!key || state::key_segment(*key, 0) != segment) no_place(path);
        const NodeId name = add(std::move(*key));  // this moves the nodes
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
    const auto step = path.empty() ? std::nullopt : last_step(*this, path);
    if (!step) return false;
    Node& container = nodes_[step->container];
    const std::size_t place = step->place;
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
    std::vector<NodeId> order;  // nodes of this tree, in the order of the new one
    const auto number_of = [&](NodeId old) {
        static_cast<void>((*this)[old]);  // throws for a number beyond the nodes
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
        static_cast<void>(part.add(std::move(node)));
    }
    return part;
}

}  // namespace safemap::SAFEMAP_ABI
