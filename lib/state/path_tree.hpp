// Builds a tree of dictionaries out of values at paths, tensors, and parts of other trees.
#pragma once

#include "base/name_index.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI::state {

/// A tree that grows. Keys of dictionaries are nodes: a text or an integer has one node, in however many dictionaries
/// it is a key. Only entries that were put here are found.
class PathTree {
public:
    using NodeId = StateTree::NodeId;

    /// The root is an empty dictionary.
    PathTree() { tree_.set_root(add(StateTree::Dict{})); }
    /// Adds to a tree.
    explicit PathTree(StateTree tree) : tree_(std::move(tree)) {}

    /// The tree as it is now. Nodes may be replaced; entries that are added to it are not found.
    StateTree& tree() noexcept { return tree_; }
    const StateTree& tree() const noexcept { return tree_; }
    NodeId root() const noexcept { return tree_.root(); }
    /// Returns the tree. Nothing may be added afterwards.
    StateTree take() { return std::move(tree_); }

    NodeId add(StateTree::Node node) { return tree_.add(std::move(node)); }
    /// Adds a tensor without a name: flatten() and the structure document then name it by its place.
    NodeId add_tensor(const LazyTensor& tensor) { return add(StateTree::Tensor{.tensor = tensor.renamed({})}); }
    /// Adds all nodes of another tree. Returns the distance to add to their numbers.
    NodeId graft(StateTree part);

    /// Returns the node of a key.
    NodeId key(std::string_view text);
    NodeId key(std::int64_t number);
    /// Returns the value of a key of a dictionary; no_node if nothing was put there.
    NodeId find(NodeId dict, NodeId key) const;
    /// Puts a value under a key of a dictionary. Returns false, and puts nothing, if the key has a value.
    bool put(NodeId dict, NodeId key, NodeId value);
    bool put(NodeId dict, std::string_view text, NodeId value) { return put(dict, key(text), value); }
    /// Returns the value of a key of a dictionary. Puts an empty dictionary there if the key has no value. The value is
    /// not a dictionary if put() has put something else there.
    NodeId dict_below(NodeId dict, NodeId key);

private:
    using Place = std::pair<NodeId, NodeId>;  ///< a dictionary and a key
    struct PlaceHash {
        std::size_t operator()(const Place& place) const noexcept {
            return name_hash({reinterpret_cast<const char*>(&place), sizeof place});
        }
    };

    StateTree tree_ = {};
    NameIndex texts_ = {};  ///< index of the nodes of keys that are texts
    std::unordered_map<std::int64_t, NodeId> numbers_ = {};
    std::unordered_map<Place, NodeId, PlaceHash> values_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::state
