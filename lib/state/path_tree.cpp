// Finds keys and entries of a tree that grows without going through its dictionaries.
#include "state/path_tree.hpp"

#include "state/walk.hpp"

#include <string>
#include <variant>

namespace safemap::SAFEMAP_ABI::state {

using NodeId = StateTree::NodeId;

NodeId PathTree::graft(StateTree part) {
    const auto base = static_cast<NodeId>(tree_.size());
    for (NodeId id = 0; id < part.size(); ++id) {
        for_each_child(part[id], [base](NodeId& child) { child += base; });
        add(std::move(part[id]));
    }
    return base;
}

NodeId PathTree::key(std::string_view text) {
    const auto text_of = [this](NodeId id) -> std::string_view { return std::get<std::string>(tree_[id]); };
    if (const auto known = texts_.find(text, text_of)) return *known;
    return texts_.add(text, add(std::string(text)), text_of);
}

NodeId PathTree::key(std::int64_t number) {
    const auto [known, is_new] = numbers_.try_emplace(number, StateTree::no_node);
    if (is_new) known->second = add(number);
    return known->second;
}

NodeId PathTree::find(NodeId dict, NodeId key) const {
    const auto found = values_.find({dict, key});
    return found == values_.end() ? StateTree::no_node : found->second;
}

bool PathTree::put(NodeId dict, NodeId key, NodeId value) {
    if (!values_.try_emplace({dict, key}, value).second) return false;
    std::get<StateTree::Dict>(tree_[dict]).items.emplace_back(key, value);
    return true;
}

NodeId PathTree::dict_below(NodeId dict, NodeId key) {
    if (const NodeId found = find(dict, key); found != StateTree::no_node) return found;
    const NodeId below = add(StateTree::Dict{});
    put(dict, key, below);
    return below;
}

}  // namespace safemap::SAFEMAP_ABI::state
