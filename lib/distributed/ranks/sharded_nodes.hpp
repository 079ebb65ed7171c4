// Reads what the tree of a rank says of its distributed tensors: DTensor and ShardedTensor, under the names that torch
// has given them over time. The pickles are read as data: both are objects with parts.
#pragma once

#include "distributed/ranks/mesh.hpp"
#include "distributed/ranks/rank_meshes.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// A shard of a ShardedTensor: a box of the whole, and the rank that holds it.
struct StatedShard {
    Shape start = {};
    Shape extent = {};
    std::optional<std::uint64_t> rank = {};
};

/// The facts about a distributed tensor that all ranks state alike.
struct StatedTensor {
    enum class Kind : std::uint8_t { dtensor, sharded };
    Kind kind = Kind::dtensor;
    Dtype dtype = Dtype::f32;
    Shape shape = {};
    // A DTensor.
    std::vector<MeshPlacement> placements = {};
    std::vector<Sharding::Order> orders = {};
    CutOrder order = CutOrder::by_factors;  ///< the order that is tried first
    // A ShardedTensor.
    std::vector<StatedShard> shards = {};
    bool shards_as_first = false;  ///< the list is that of the first file, and `shards` is empty
};

/// A tensor of one file that is a part of a distributed tensor.
struct LocalValue {
    Shape start = {};  ///< for a ShardedTensor; a DTensor's place follows from its mesh
    const LazyTensor* value = nullptr;
};

/// A distributed tensor as one file states it.
struct StatedLocal {
    StatedTensor tensor = {};
    std::uint32_t mesh = 0;               ///< DTensor: the number of its mesh
    std::vector<LocalValue> values = {};  ///< DTensor: one
    bool parameter = false;
    bool requires_grad = false;
};

class ShardLists;

/// Returns the kind of distributed tensor that a node is, or nothing.
std::optional<StatedTensor::Kind> distributed_kind(const StateTree::Node& node);

/// Reads the distributed tensors of one file. Meshes that several of them share are read once. A pickle may have one
/// list in many places: what all calls read together is bounded by the size of the tree.
class ShardedNodes {
public:
    /// Keeps references. `rank` is that of the file. `lists` are those that were taken from the pickle; null: none.
    ShardedNodes(const StateTree& tree, const RankNames& names, std::uint64_t rank, RankMeshes& meshes,
                 const ShardLists* lists);

    /// Reads a distributed tensor. The pointers in the result are valid as long as the tree. `first` is what the first
    /// file states of the tensor; null in the first file.
    ///
    /// Throws:
    /// - partial_placement for a DTensor that is a term of a sum
    /// - unsupported_layout for a placement that is not known
    /// - piece_outside if it is cut along a dimension that it does not have
    /// - piece_mismatch if a local value is not a plain tensor, or two fields give different shapes
    /// - field_missing if a field is missing or of another kind, or placements and mesh have different lengths
    /// - pickle_too_large if the pickle has lists in many places
    /// - TakenValue if a list that was taken from the pickle is not in the place of a list of shards
    /// - what read_mesh() throws, also for the ranks that have the shards of a ShardedTensor
    StatedLocal read(StateTree::NodeId node, const StatedTensor* first = nullptr);
    /// Returns the rank that the file says it is of; nothing if no tensor that was read says it.
    std::optional<std::uint64_t> stated_rank() const noexcept { return stated_rank_; }

private:
    StatedLocal dtensor(const Value& object);
    StatedLocal sharded(const Value& object, const StatedTensor* first);
    std::vector<MeshPlacement> placements(const Value& list, std::size_t rank) const;
    std::vector<Sharding::Order> orders(const Value& spec, const StatedTensor& tensor) const;
    StatedMesh mesh(const Value& value);
    void require_files_of(const std::vector<StatedShard>& shards);
    StatedShard shard(const Value& metadata) const;
    void read_shards(const Value& list, const StatedTensor* first, StatedTensor& said);
    void add_local_shards(const Value& list, StatedLocal& out) const;
    const Value& untaken(const Value& list) const;
    const LazyTensor* tensor(const Value& value) const;

    const StateTree& tree_;
    Value file_;
    const RankNames& names_;
    std::uint64_t rank_;
    RankMeshes& meshes_;
    const ShardLists* lists_;
    std::optional<std::uint64_t> stated_rank_ = {};
    std::unordered_map<StateTree::NodeId, StatedMesh> known_meshes_ = {};
    std::vector<std::uint64_t> last_ranks_ = {};  ///< the ranks that have the shards of the ShardedTensor before
    std::uint64_t shards_left_;                   ///< shards of taken lists that may still be read
};

}  // namespace safemap::SAFEMAP_ABI::distributed
