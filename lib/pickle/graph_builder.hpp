// Builds the nodes of a graph and charges for them. None, booleans, () and small integers get one node each.
#pragma once

#include "pickle/input.hpp"
#include "pickle/pickle.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A builder of the graph of one pickle.
class GraphBuilder {
public:
    using Id = PickleGraph::Id;
    using Kind = PickleGraph::Kind;
    using Extra = PickleGraph::Extra;
    /// Longest name of a global in bytes, module and name together. Each object of a class gets a copy of it, and each
    /// step in a chain of getattr makes it longer.
    static constexpr std::size_t max_global_bytes = 1024;

    GraphBuilder(const PickleInput& input, const PickleLimits& limits);

    const PickleGraph& graph() const noexcept { return graph_; }
    Allowance& allowance() noexcept { return graph_.allowance_; }
    bool has_globals() const noexcept { return !graph_.globals_.empty(); }
    PickleGraph finish(Id root);

    Id none() { return shared(none_, {.kind = Kind::none}); }
    Id empty_tuple() { return shared(empty_tuple_, {.kind = Kind::tuple}); }
    Id boolean(bool value) { return shared(value ? true_ : false_, {.kind = Kind::boolean, .word = value ? 1U : 0U}); }
    Id integer(std::int64_t value) {
        const Node node{.kind = Kind::integer, .word = static_cast<std::uint64_t>(value)};
        return node.word < small_integers_.size() ? shared(small_integers_[node.word], node) : add(node);
    }
    /// Adds an integer, given as two's complement, little-endian.
    Id integer(std::string_view bytes);
    Id decimal(std::string_view digits);
    Id real(double value) { return add({.kind = Kind::real, .word = std::bit_cast<std::uint64_t>(value)}); }
    /// Adds a text, bytes or a bytearray, as a view of `bytes`.
    Id view(Kind kind, std::string_view bytes);
    /// Keeps a text that the pickle does not hold in this form, and returns a view of it.
    std::string_view keep(std::string text) { return graph_.owned_.emplace_back(std::move(text)); }
    Id persistent(Id said) { return add({.kind = Kind::persistent, .count = said}); }

    /// Adds a tuple. Tuples and frozensets never change, so they get all their items at once.
    Id tuple(std::span<const Id> items);
    Id frozenset(std::span<const Id> items);
    /// Adds a list, dict or set. It gets memory for its members when the first one comes.
    Id growing(Kind kind) { return add({.kind = kind, .count = PickleGraph::no_extra}); }
    std::vector<Id>& members(Id id);
    /// Adds a list that a ListReader took. `nodes` are the items that are nodes.
    Id taken_list(std::span<const Id> nodes);

    Id global(const PickleGraph::Global& global, unsigned protocol);
    Id call(Id callee, Id arguments);
    /// Notes that a call does not call the constructor, or is BUILD on a class.
    void set_bare(Id call) { graph_.nodes_[call].bare = true; }
    void set_of_class(Id call) { graph_.nodes_[call].of_class = true; }
    Extra& extra(Id call);

    bool hashable(Id id) const;
    void require_hashable(Id id) const;

private:
    using Node = PickleGraph::Node;

    Id add(const Node& node) {
        allowance().spend(node_cost);
        graph_.nodes_.push_back(node);
        return static_cast<Id>(graph_.nodes_.size() - 1);
    }
    /// Returns the node in `known`. Adds it first if there is no node yet.
    Id shared(Id& known, const Node& node) { return known == PickleGraph::nothing ? known = add(node) : known; }
    /// Returns the element of `all` for a node, which holds its index. Adds the element on first use, and charges for
    /// it.
    template <class Value> Value& of_node(Id id, std::vector<Value>& all, std::uint64_t cost);
    Id fixed(Kind kind, std::span<const Id> items, bool unhashable);

    /// Charge for a node, for its node in the tree, and for everything that is noted by node on the way to names.
    static constexpr std::uint64_t node_cost = 160;

    const PickleInput& input_;
    std::size_t max_long_bytes_;
    PickleGraph graph_;
    Id none_ = PickleGraph::nothing;
    Id true_ = PickleGraph::nothing;
    Id false_ = PickleGraph::nothing;
    Id empty_tuple_ = PickleGraph::nothing;
    std::array<Id, 256> small_integers_;
};

}  // namespace safemap::SAFEMAP_ABI
