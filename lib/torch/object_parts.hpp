// The parts of an opaque object: arguments, states and items of a call, each under a name of its own.
#pragma once

#include "base/name_index.hpp"
#include "torch/tree_draft.hpp"

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

namespace safemap::SAFEMAP_ABI::torch {

/// The key of a dictionary of attributes where it is an integer or a text of some length, else its place.
std::string attribute_name(const PickleGraph& pickle, PickleGraph::Id key, std::size_t place);
/// The name of the class that a node is, also by a persistent id.
std::string class_name(const PickleGraph& pickle, PickleGraph::Id id);

/// Gives parts to the object that one node of the tree becomes.
class ObjectParts {
public:
    using Id = PickleGraph::Id;
    using NodeId = StateTree::NodeId;
    using Opaque = StateTree::Opaque;

    ObjectParts(TreeDraft& draft, NodeId self) : draft_(draft), pickle_(draft.pickle()), self_(self) {}

    NodeId self() const noexcept { return self_; }
    /// All that a call of a function says, which nobody knows.
    Opaque call(std::string type, std::string why, const PickleGraph::Call& said);

    void add(Opaque& out, std::string name, Id id);
    /// A value that the pickle has not.
    void add_value(Opaque& out, std::string name, StateTree::Node value);
    /// The tensor that an object is around: a child without a name.
    void add_itself(Opaque& out, StateTree::Node tensor);
    /// As many as there are.
    void add_named(Opaque& out, std::initializer_list<std::string_view> names, std::span<const Id> parts);
    void add_arguments(Opaque& out, std::span<const Id> arguments);
    /// A dictionary of attributes, (dictionary or None, dictionary of slots), or whatever the class understands.
    void add_state(Opaque& out, Id state);
    /// Keys and values in turn.
    void add_entries(Opaque& out, std::span<const Id> items);
    void remove(Opaque& out, const std::string& name);
    bool has(const std::string& name) const { return names_.contains(name); }

private:
    /// Arguments, states and items of one object may have the same names.
    std::string unique(std::string name);

    TreeDraft& draft_;
    const PickleGraph& pickle_;
    NodeId self_;
    std::unordered_set<std::string, NameHash> names_;  ///< of all parts
    std::size_t repeated_names_ = 0;  ///< among them; only rises, so that finding a free name stays cheap
};

}  // namespace safemap::SAFEMAP_ABI::torch
