// Reads the lists of all shards that each ShardedTensor of a file has, from the bytes of the pickle. Each file of a set
// lists the shards of all ranks, so that these lists are nearly all that the pickles hold.
#pragma once

#include "distributed/ranks/sharded_nodes.hpp"
#include "pickle/list_reader.hpp"

#include <safemap/state_tree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The lists of one file, of the form that torch writes in protocol 2 (the default of torch.save):
///
/// - `shards_metadata`: ShardMetadata objects with a _remote_device, with slots (torch 2.13) or a dictionary
/// - `placements` and `shards` of the sharding spec: objects of the list above, which nothing reads
///
/// A list in any other form is left to the machine. A list that is taken has eight bytes for each number in it.
class ShardLists final : public ListReader {
public:
    using NodeId = StateTree::NodeId;

    std::optional<Taken> take(const Place& place) override;

    bool empty() const noexcept { return lists_.empty(); }
    /// Returns the number of shards in all lists.
    std::size_t shards() const noexcept { return shards_; }

    /// Sets the nodes of the lists in the tree: see torch::Rebuilt::taken_lists. Throws TakenValue if a list can be
    /// reached other than through a ShardedTensor that is a value: in a key, or beside it.
    void place_in(const StateTree& tree, const std::vector<NodeId>& nodes);
    /// Returns true if the node is a list that was taken.
    bool has(NodeId list) const { return numbers_.contains(list); }
    /// Returns the shards of a list, and calls `read` for those that are nodes of their own. Throws TakenValue if the
    /// list is of a spec.
    template <class Read> std::vector<StatedShard> at(const StateTree& tree, NodeId list, Read&& read) const {
        const List& found = lists_[numbers_.at(list)];
        if (!found.of_shards) throw TakenValue();
        std::vector<StatedShard> out;
        out.reserve(found.shards);
        std::size_t next = 0;
        const std::uint64_t* word = words_.data() + found.begin;
        for (std::size_t i = 0; i < found.shards; ++i) {
            if (const std::uint64_t head = *word++; head == node) {
                out.push_back(read(std::get<StateTree::Sequence>(tree[list]).items[next++]));
            } else {
                StatedShard& one = out.emplace_back();
                if (head != no_rank) one.rank = head;
                one.start = Shape(std::span(word, found.dimensions));
                word += found.dimensions;
                one.extent = Shape(std::span(word, found.dimensions));
                word += found.dimensions;
            }
        }
        return out;
    }

    /// Returns true if a list has these shards, of the same ranks. Makes none of them. Otherwise as at().
    template <class Read>
    bool is(const StateTree& tree, NodeId list, const std::vector<StatedShard>& shards, Read&& read) const {
        const List& found = lists_[numbers_.at(list)];
        if (!found.of_shards) throw TakenValue();
        if (found.shards != shards.size()) return false;
        std::size_t next = 0;
        const std::uint64_t* word = words_.data() + found.begin;
        const auto same = [&](const Shape& shape) {
            const std::uint64_t* const numbers = std::exchange(word, word + found.dimensions);
            return shape.size() == found.dimensions && std::equal(shape.begin(), shape.end(), numbers);
        };
        for (const StatedShard& one : shards) {
            const std::uint64_t head = *word++;
            if (head == node) {
                const StatedShard own = read(std::get<StateTree::Sequence>(tree[list]).items[next++]);
                if (own.rank != one.rank || own.start != one.start || own.extent != one.extent) return false;
            } else if (head != one.rank.value_or(no_rank) || !same(one.start) || !same(one.extent)) {
                return false;
            }
        }
        return true;
    }

private:
    class Form;

    /// Numbers of a shard: its rank, offsets and sizes. A shard that is a node has the first one only.
    static constexpr std::uint64_t no_rank = UINT64_MAX;
    static constexpr std::uint64_t node = UINT64_MAX - 1;

    struct List {
        std::size_t begin;  ///< in words_
        std::size_t shards;
        std::size_t dimensions;
        bool of_shards;  ///< false for a list of a spec
    };
    /// Nodes of the pickle that all lists name, once they are known.
    struct Known {
        PickleGraph::Id shard = PickleGraph::nothing;
        PickleGraph::Id remote = PickleGraph::nothing;
        PickleGraph::Id device = PickleGraph::nothing;
        PickleGraph::Id offsets = PickleGraph::nothing;
        PickleGraph::Id sizes = PickleGraph::nothing;
        PickleGraph::Id placement = PickleGraph::nothing;
        PickleGraph::Id rank = PickleGraph::nothing;
        PickleGraph::Id worker = PickleGraph::nothing;
        PickleGraph::Id device_name = PickleGraph::nothing;
    };

    Known known_ = {};
    std::vector<std::uint64_t> words_ = {};
    std::vector<List> lists_ = {};
    std::vector<PickleGraph::Id> nodes_ = {};  ///< nodes that the last list names
    std::size_t shards_ = 0;
    std::size_t others_ = 0;  ///< lists that were not taken
    std::unordered_map<NodeId, std::size_t> numbers_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::distributed
