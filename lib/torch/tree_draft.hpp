// Builds the tree of a pickle. A node gets its number when it is first referred to, and its value when its turn comes.
// The place where it was found first is its path in errors.
#pragma once

#include "pickle/pickle.hpp"

#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

// Charges in bytes of memory, beyond those for the nodes of the pickle; see PickleLimits.
inline constexpr std::uint64_t link_cost = 4;
inline constexpr std::uint64_t entry_cost = 64;  ///< entry of a dictionary
inline constexpr std::uint64_t argument_cost = 64;
inline constexpr std::uint64_t child_cost = 192;
inline constexpr std::uint64_t tensor_cost = 1024;
inline constexpr std::uint64_t fault_cost = 512;

/// Longest name of an attribute, in bytes. Each object that has the attribute copies the name. A longer name is
/// replaced by its place.
inline constexpr std::size_t max_key_bytes = 1024;

/// The tree of a pickle while it grows.
class TreeDraft {
public:
    using Id = PickleGraph::Id;
    using NodeId = StateTree::NodeId;
    using Node = StateTree::Node;
    /// The place of a node: the parent and the number of the child.
    struct Place {
        NodeId parent = StateTree::no_node;
        std::size_t child = 0;
    };

    explicit TreeDraft(const PickleGraph& pickle);

    const PickleGraph& pickle() const noexcept { return pickle_; }
    Allowance& allowance() noexcept { return allowance_; }
    void spend(std::uint64_t bytes) { allowance_.spend(bytes); }

    /// Returns the node of the tree for a node of the pickle. Adds it if this is the first reference.
    NodeId refer(Id id, Place place) {
        if (nodes_.empty()) nodes_.assign(pickle_.size(), StateTree::no_node);
        if (nodes_[id] == StateTree::no_node) nodes_[id] = add(StateTree::None{}, place, id);
        return nodes_[id];
    }
    bool is_referred(Id id) const { return !nodes_.empty() && nodes_[id] != StateTree::no_node; }
    /// Adds a node that is not in the pickle.
    NodeId add(Node node, Place place) { return add(std::move(node), place, PickleGraph::nothing); }

    /// Fills all nodes with the results of `interpret(id, self)`, breadth first.
    template <class Interpret> void fill(Interpret&& interpret) {
        for (NodeId self = 0; self < sources_.size(); ++self) {
            if (sources_[self] == PickleGraph::nothing) continue;
            Node node = interpret(sources_[self], self);
            spend(cost(node));
            tree_[self] = std::move(node);
        }
    }
    /// Returns the name that flatten would give to the node, or the end of it.
    std::string path_of(NodeId id) const;

    StateTree& tree() noexcept { return tree_; }

private:
    NodeId add(Node node, Place place, Id source) {
        sources_.push_back(source);
        places_.push_back(place);
        return tree_.add(std::move(node));
    }
    static std::uint64_t cost(const Node& node);
    bool is_module_part(NodeId id) const;
    std::string segment(const Place& place, bool in_module) const;

    const PickleGraph& pickle_;
    Allowance allowance_;
    StateTree tree_;
    std::vector<NodeId> nodes_;  ///< node of the tree, by node of the pickle; empty until the first reference
    std::vector<Id> sources_;    ///< node of the pickle, by node of the tree; nothing for a node that is filled already
    std::vector<Place> places_;
};

}  // namespace safemap::SAFEMAP_ABI::torch
