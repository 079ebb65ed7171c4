// Builds the paths of nodes for errors, and charges for nodes. Tested by tests/torch/rebuild_test.cpp.
#include "torch/tree_draft.hpp"

#include "state/modules.hpp"
#include "state/names.hpp"

#include <variant>

namespace safemap::SAFEMAP_ABI::torch {

namespace {

/// Most levels, and most bytes, of a tensor's path in an error.
constexpr std::size_t max_path_levels = 64;
constexpr std::size_t max_path_bytes = 2000;

constexpr std::uint64_t opaque_cost = 384;

/// The memory, in bytes, that a node takes beside its place in the tree: here and as a name.
struct NodeCost {
    std::uint64_t operator()(const std::string& text) const { return text.size(); }
    std::uint64_t operator()(const StateTree::Bytes& value) const { return value.bytes.size(); }
    std::uint64_t operator()(const StateTree::BigInt& value) const { return value.decimal.size(); }
    std::uint64_t operator()(const StateTree::Constant& value) const { return value.text.size(); }
    std::uint64_t operator()(const StateTree::NumpyScalar& value) const { return value.dtype.size(); }
    std::uint64_t operator()(const StateTree::Tensor&) const { return tensor_cost; }
    std::uint64_t operator()(const StateTree::Opaque& value) const {
        return opaque_cost + 2 * (value.type.size() + value.why.size());
    }
    template <class Other> std::uint64_t operator()(const Other&) const { return 0; }
};

}  // namespace

TreeDraft::TreeDraft(const PickleGraph& pickle) : pickle_(pickle), allowance_(pickle.allowance()) {
    tree_.reserve(pickle.size());
    sources_.reserve(pickle.size());
    places_.reserve(pickle.size());
}

std::uint64_t TreeDraft::cost(const Node& node) { return std::visit(NodeCost(), node); }

std::string TreeDraft::path_of(NodeId id) const {
    std::vector<std::string> segments;
    std::vector<bool> of_module;  // by segment: true if it is a key of a module's dictionary; names omit the dictionary
    std::size_t bytes = 0;
    while (places_[id].parent != StateTree::no_node && segments.size() < max_path_levels) {
        const Place place = places_[id];
        const bool in_module = is_module_part(place.parent);
        std::string each = segment(place, in_module);
        bytes += each.size() + 1;
        if (bytes > max_path_bytes && !segments.empty()) break;
        segments.push_back(std::move(each));
        of_module.push_back(in_module);
        id = in_module ? places_[place.parent].parent : place.parent;
    }
    if (segments.empty()) return std::string(state::root_name);
    std::string path = places_[id].parent == StateTree::no_node ? "" : "...";
    for (std::size_t i = segments.size(); i-- > 0;) {
        const bool dotted = of_module[i] && i + 1 < segments.size() && of_module[i + 1];
        if (!path.empty()) path += dotted ? '.' : '/';
        path += segments[i];
    }
    return path;
}

/// Returns true if a node is a dictionary of a module. Only errors use the answer, so this does not check that the
/// owner has all parts of a module.
bool TreeDraft::is_module_part(NodeId id) const {
    const Place place = places_[id];
    if (place.parent == StateTree::no_node || !std::holds_alternative<StateTree::Dict>(tree_[id])) return false;
    const auto* const owner = std::get_if<StateTree::Opaque>(&tree_[place.parent]);
    return owner != nullptr && place.child < owner->children.size() &&
           state::is_module_part(owner->children[place.child].first);
}

std::string TreeDraft::segment(const Place& place, bool in_module) const {
    const Node& parent = tree_[place.parent];
    if (const auto* dict = std::get_if<StateTree::Dict>(&parent); dict != nullptr && place.child < dict->items.size()) {
        const Node& key = tree_[dict->items[place.child].first];
        if (cost(key) > max_key_bytes) return state::ordinal_segment(place.child);
        return in_module ? state::module_segment(key, place.child) : state::key_segment(key, place.child);
    }
    if (const auto* opaque = std::get_if<StateTree::Opaque>(&parent);
        opaque != nullptr && place.child < opaque->children.size()) {
        return state::child_segment(opaque->children[place.child].first);
    }
    return std::to_string(place.child);
}

}  // namespace safemap::SAFEMAP_ABI::torch
