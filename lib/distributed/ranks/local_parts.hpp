// Compares the tensors of a rank's file with those of the skeleton, and notes where its parts of them are.
#pragma once

#include "distributed/agree.hpp"
#include "distributed/ranks/rank_meshes.hpp"
#include "distributed/ranks/rank_share.hpp"
#include "distributed/ranks/rank_skeleton.hpp"
#include "distributed/ranks/sharded_nodes.hpp"

#include <safemap/error.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns "a DTensor", "a ShardedTensor", "a plain tensor" or "no tensor".
std::string kind_text(const StateTree::Node& node);

/// The tensors of one file. Keeps references to what it is made of; fills `share`.
class LocalParts {
public:
    LocalParts(const Skeleton& skeleton, const StateTree& tree, const RankNames& names, std::size_t i,
               RankMeshes& meshes, const SampleSizes& samples, const ShardLists* lists, RankShare& share)
        : skeleton_(skeleton),
          tree_(tree),
          agree_(names.file(0)),
          meshes_(meshes),
          samples_(samples),
          nodes_(tree, names, names.rank(i), meshes, lists),
          share_(share) {}

    /// Compares the node that the file has in place of a tensor of the skeleton, and adds its part to the share. If the
    /// file says that it is of another rank, sets `foreign` of the share instead. Returns true if the tensor is to be
    /// listed as a value that differs. Throws as share_of() does.
    bool add(std::uint32_t number, StateTree::NodeId node);
    /// Returns true if a tensor has said which rank the file is of.
    bool states_rank() const noexcept { return nodes_.stated_rank().has_value(); }

private:
    using Values = std::vector<std::pair<std::uint32_t, const LazyTensor*>>;  ///< number of the shard, and its tensor

    void add_distributed(std::uint32_t number, const SkeletonTensor& tensor, StateTree::NodeId node);
    bool add_plain(std::uint32_t number, const SkeletonTensor& tensor, const LazyTensor& value);
    void add_dtensor(std::uint32_t number, const SkeletonTensor& tensor, const StatedLocal& local);
    void add_sharded(std::uint32_t number, const SkeletonTensor& tensor, const StatedLocal& local);
    bool sampled_differ(const SkeletonTensor& tensor, const LazyTensor& value);
    void compare(const StatedTensor& first, const StatedTensor& other) const;
    void compare_meshes(const SkeletonTensor& tensor, const StatedLocal& local) const;
    const std::vector<std::uint64_t>* coordinates_in(std::uint32_t mesh);
    void check_shape(std::uint32_t number, const SkeletonTensor& tensor, const LazyTensor& value,
                     const std::vector<std::uint64_t>& at, std::uint32_t mesh);
    LocalPart part_of(const SkeletonTensor& tensor, std::uint32_t place, const LazyTensor& value);
    LocalPart odd(const Values& values);
    void set_part(std::uint32_t number, const LocalPart& part);
    [[noreturn]] void differ(const std::string& what, const std::string& first, const std::string& other) const {
        agree_.differ(what, first, other);
    }

    const Skeleton& skeleton_;
    const StateTree& tree_;
    Agreement agree_;
    RankMeshes& meshes_;
    SampleSizes samples_;
    ShardedNodes nodes_;
    RankShare& share_;
    /// This rank's coordinates in each mesh; nothing if the mesh does not have it.
    std::unordered_map<std::uint32_t, std::optional<std::vector<std::uint64_t>>> coordinates_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::distributed
