// Compares and copies values of two trees.
#pragma once

#include "base/name_index.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The most bytes of a tensor that is compared while files are opened.
inline constexpr std::uint64_t compared_bytes = 64 << 10;

/// Returns true if the first `most` bytes of two tensors of one dtype and shape are equal. Reads them.
bool have_equal_bytes(const LazyTensor& a, const LazyTensor& b, std::uint64_t most);

/// Compares values of a tree with those of another one. Values are equal if Python would save the same, apart from
/// which of them share an object. A cycle is equal to another one if no walk through them finds a difference. NaNs are
/// equal if their bits are. Of tensors of more than compared_bytes only dtype and shape are compared.
///
/// All calls together are bounded by the sizes of the trees: beyond a few times as many comparisons, same() throws
/// pickle_too_large.
class TreeComparison {
public:
    using NodeId = StateTree::NodeId;

    /// Keeps references to the trees.
    TreeComparison(const StateTree& first, const StateTree& other);

    /// Returns true if the value of a node of the first tree equals that of a node of the other one.
    bool same(NodeId first, NodeId other);
    /// Counts comparisons that the caller makes. Throws pickle_too_large.
    void spend(std::uint64_t steps);

private:
    using Pair = std::pair<NodeId, NodeId>;

    /// Compares two nodes without the values in them, which are added to `open_`.
    bool same_node(NodeId first, NodeId other);
    bool open_items(const std::vector<NodeId>& first, const std::vector<NodeId>& other);
    template <class Named> bool open_named(const Named& first, const Named& other);

    const StateTree& first_;
    const StateTree& other_;
    std::uint64_t left_;
    std::vector<Pair> open_ = {};
    std::unordered_set<std::uint64_t> met_ = {};  ///< pairs that were compared, or are being compared
};

/// Copies values into a tree. A node that was copied before is shared.
class TreeCopy {
public:
    TreeCopy(const StateTree& from, StateTree& to) : from_(from), to_(to) {}

    /// Returns the node in the other tree.
    StateTree::NodeId copy(StateTree::NodeId node);

private:
    StateTree::NodeId number_of(StateTree::NodeId node);

    const StateTree& from_;
    StateTree& to_;
    std::unordered_map<StateTree::NodeId, StateTree::NodeId> numbers_ = {};
    std::vector<StateTree::NodeId> open_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::distributed
