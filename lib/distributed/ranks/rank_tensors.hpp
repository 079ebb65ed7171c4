// Whole tensors out of what the files of all ranks hold: one tree, and the replicas that should be equal.
#pragma once

#include "distributed/ranks/mesh.hpp"
#include "distributed/ranks/rank_meshes.hpp"
#include "distributed/ranks/rank_share.hpp"
#include "distributed/ranks/rank_skeleton.hpp"
#include "lazy/whole.hpp"
#include "state/contents.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/progress.hpp>
#include <safemap/state_tree.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// All files of a set, read.
struct RankFileSet {
    explicit RankFileSet(RankNames files) : names(std::move(files)) {}

    RankNames names;
    RankMeshes meshes = {};
    std::optional<Skeleton> skeleton = {};
    std::vector<RankShare> shares = {};  ///< one for each file, in the order of `names`
};

/// Makes whole tensors of a set.
class RankTensors {
public:
    /// Checks what can only be checked once all files are read.
    ///
    /// Throws, with the path of a file:
    /// - rank_repeated if two files say that they are of one rank; ranks_differ if a file says that it is of another
    ///   rank than its name
    /// - world_mismatch if a rank is in no mesh
    /// - ranks_differ if ranks of one mesh state different meshes for a tensor, or if no tensor is distributed and the
    ///   values of a plain one differ
    /// - piece_mismatch if a _StridedShard fits the local values of all ranks in neither way
    explicit RankTensors(std::shared_ptr<RankFileSet> set);

    /// Makes all tensors: that of number i of the skeleton has number i. Works in parallel. Throws what whole() throws,
    /// with the name of the tensor; piece_missing if no file has a shard; pickle_too_large if interleaved placements
    /// make more pieces than the files can have; ranks_differ if ranks of different meshes, which should hold the same
    /// tensor, have other values in its first bytes.
    void make(const Work& work);
    const LazyTensor& tensor(std::size_t i) const { return made_[i]; }

    /// Calls visit() for every pair of tensors that should be equal. May be called from several threads at once.
    void each_replica(const std::function<void(const state::Replica&)>& visit) const;
    /// Returns the tensors of all ranks under the name of number i of the skeleton, for tensors in pieces.
    std::vector<LazyTensor> pieces(std::size_t i) const;
    const PartSources& sources() const noexcept { return sources_; }

private:
    /// A part of a whole tensor: what one rank has of it.
    struct Member {
        std::size_t share;
        std::uint64_t place;  ///< DTensor: in the mesh; ShardedTensor: the number of the shard
        std::uint32_t value;  ///< number of the share's odd value
    };
    /// The parts of one tensor, or of a replica of it.
    using Group = std::vector<Member>;
    using Places = std::unordered_map<std::uint64_t, std::uint64_t>;

    void check_ranks() const;
    void check_world() const;
    void check_meshes(std::uint32_t number) const;
    void choose_orders();
    void check_values() const;
    void index_meshes();
    void find_ties();

    const SkeletonTensor& described(std::size_t i) const { return set_->skeleton->tensors()[i]; }
    const LocalPart& part(std::size_t share, std::size_t i) const { return set_->shares[share].parts[i]; }
    const std::string& file(std::size_t share) const { return set_->names.file(share); }

    std::vector<Group> groups(std::size_t i) const;
    std::vector<Group> groups_of_mesh(std::size_t i) const;
    std::vector<Group> groups_of_shards(std::size_t i) const;
    LazyTensor whole_of(std::size_t i, const Group& group) const;
    std::vector<Part> parts_of(std::size_t i, const Group& group) const;
    LazyTensor value_of(std::size_t i, const Member& member, const Shape& shape) const;
    void compare_meshes(std::size_t i, const std::vector<Group>& groups) const;
    void each_replica_of(std::size_t i, const std::function<void(const state::Replica&)>& visit) const;

    std::shared_ptr<RankFileSet> set_;
    std::vector<Places> places_ = {};        ///< the places of ranks in each mesh
    std::vector<bool> second_order_ = {};    ///< tensors that are cut in the second of two ways
    std::vector<std::size_t> same_as_ = {};  ///< the first tensor with the same parts
    std::vector<LazyTensor> made_ = {};
    PartSources sources_ = {};
    mutable std::atomic<std::uint64_t> pieces_left_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::distributed
