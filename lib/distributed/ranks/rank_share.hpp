// The share of a rank: where its parts of tensors are in its file, and the values in which it differs from the lowest
// rank. The file's pickle is freed.
#pragma once

#include "distributed/ranks/rank_meshes.hpp"
#include "distributed/ranks/rank_skeleton.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Where a rank has its part of one tensor: 24 bytes, because a set has one for each rank and tensor.
struct LocalPart {
    enum class State : std::uint8_t {
        absent,  ///< the walk has not come to it
        empty,   ///< it has no elements
        run,     ///< one contiguous run of the file, of the shape that the mesh, or the shard, gives
        values   ///< anything else: `count` of the share's values, from number `first` on
    };
    std::uint64_t offset = 0;  ///< run: in bytes; ignored tensor: the number of its elements
    std::uint32_t place = 0;   ///< DTensor: the number of its mesh; ShardedTensor: the number of its shard
    std::uint32_t first = 0;
    std::uint16_t count = 0;
    State state = State::absent;

    friend bool operator==(const LocalPart&, const LocalPart&) = default;
};

/// A value of the file that is not one run of it.
struct OddValue {
    std::uint32_t shard = 0;  ///< used for a ShardedTensor
    LazyTensor value;
};

/// A file that a rank has saved, without its pickle.
struct RankShare {
    std::uint64_t rank = 0;
    std::shared_ptr<const Source> source = {};
    std::optional<std::uint64_t> foreign = {};  ///< the rank that the file says it is of, if that is another one
    bool states_rank = false;                   ///< the pickle says of which rank it is
    std::vector<LocalPart> parts = {};          ///< one for each tensor of the skeleton
    std::vector<OddValue> values = {};
    /// DTensors that can be cut in two ways, and whether the local value fits the first and the second one.
    struct Fits {
        std::uint32_t tensor;
        bool first;
        bool other;
    };
    std::vector<Fits> fits = {};
    /// A value that differs from that of the lowest rank.
    struct Different {
        std::string path;
        StateTree::NodeId value;  ///< a node of `objects`
        /// The key in `objects`, set only if no other rank has the value. A name cannot spell a key that is a tuple.
        StateTree::NodeId key = StateTree::no_node;
    };
    std::vector<Different> different = {};
    StateTree objects = {};
    std::vector<std::string> lacking = {};          ///< the first paths of values that only the lowest rank has
    std::optional<std::uint32_t> other_value = {};  ///< the first plain tensor whose bytes were compared and differ
};

/// How much of plain tensors is compared while the files are opened.
struct SampleSizes {
    std::uint64_t each = 0;  ///< bytes of each tensor
    std::uint64_t all = 0;   ///< bytes of all tensors of a file
};

/// Compares the tree of a file with the skeleton, and returns what stays of it. `i` is the file's place in `names`.
/// Tensors that the skeleton keeps from the lowest rank are compared in dtype and shape; their first bytes, as far as
/// `samples` says. Bytes in one dimension (U8), such as the states of random number generators, are compared as values.
///
/// If the file says that it is of another rank, the comparison ends there.
///
/// Throws, with the tensor's name:
/// - ranks_differ, with both values and both files, if names, dtypes, shapes, placements, meshes, shards or plainness
///   differ
/// - piece_mismatch if a local value is not of the shape that the mesh or the shard gives
/// - world_mismatch if a rank that is not in the mesh has values
/// - what ShardedNodes::read() throws, which gets `lists`; pickle_too_large if the pickle has containers in many places
RankShare share_of(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
                   const std::shared_ptr<const Source>& source, RankMeshes& meshes, const SampleSizes& samples,
                   const ShardLists* lists = nullptr);

}  // namespace safemap::SAFEMAP_ABI::distributed
