// Collects the parts of an opaque object: arguments, states and items of a call, each under its own name.
#pragma once

#include "base/name_index.hpp"
#include "torch/tree_draft.hpp"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns the name of an attribute: its key if this is an integer or a text that can be a name, else "key" and its
/// place.
std::string attribute_name(const PickleGraph& pickle, PickleGraph::Id key, std::size_t place);
/// Returns the name of the class that a node names, directly or by a persistent id.
std::string class_name(const PickleGraph& pickle, PickleGraph::Id id);

/// A builder that adds parts to the object that one node of the tree becomes.
class ObjectParts {
public:
    using Id = PickleGraph::Id;
    using NodeId = StateTree::NodeId;
    using Opaque = StateTree::Opaque;

    ObjectParts(TreeDraft& draft, NodeId self) : draft_(draft), pickle_(draft.pickle()), self_(self) {}

    NodeId self() const noexcept { return self_; }
    /// Returns an object with all parts of a call of an unknown function.
    Opaque call(std::string type, std::string why, const PickleGraph::Call& said);

    void add(Opaque& out, std::string name, Id id);
    /// Adds a value that is not in the pickle.
    void add_value(Opaque& out, std::string name, StateTree::Node value);
    /// Adds the tensor that an object wraps, as a child without a name. Does nothing if the node is not a tensor.
    void add_itself(Opaque& out, StateTree::Node tensor);
    /// Adds parts under the given names. Stops when the parts or the names run out.
    void add_named(Opaque& out, std::initializer_list<std::string_view> names, std::span<const Id> parts);
    void add_arguments(Opaque& out, std::span<const Id> arguments);
    /// Adds a state: a dictionary of attributes, a pair (dictionary or None, dictionary of slots), or any value that
    /// the class understands.
    void add_state(Opaque& out, Id state);
    /// Adds items, which are keys and values in turn.
    void add_entries(Opaque& out, std::span<const Id> items);
    void remove(Opaque& out, const std::string& name);
    bool has(const std::string& name) const { return names_.contains(name); }

private:
    /// Returns the name, with a number appended if it is taken: arguments, states and items of one object may have the
    /// same names.
    std::string unique(std::string name);

    TreeDraft& draft_;
    const PickleGraph& pickle_;
    NodeId self_;
    std::unordered_set<std::string, NameHash> names_;  ///< names of all parts
    std::size_t repeated_names_ = 0;  ///< last number that was appended; only rises, so that a free name is found fast
};

}  // namespace safemap::SAFEMAP_ABI::torch
