// The tree of the lowest rank, with which those of the other ranks are compared, and the list of its tensors.
#pragma once

#include "distributed/ranks/mesh.hpp"
#include "distributed/ranks/rank_meshes.hpp"
#include "distributed/ranks/sharded_nodes.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns for each node whether it is a tensor, plain or distributed, or holds one. NumPy arrays are values, not
/// tensors. Linear in the size of the tree.
std::vector<bool> nodes_with_tensors(const StateTree& tree);

/// The kind of tensor that the ranks have under a name.
enum class TensorRole : std::uint8_t {
    replica,  ///< a plain tensor, which all ranks should have alike
    dtensor,
    sharded,
    piece,   ///< a plain tensor that differs between ranks: a part of a flat parameter
    ignored  ///< a plain tensor that repeats a part of a flat parameter
};

/// A tensor of the skeleton.
struct SkeletonTensor {
    TensorRole role = TensorRole::replica;
    StateTree::NodeId node = 0;
    std::string name = {};  ///< path of the first place where the tree has it
    // A plain tensor.
    Dtype dtype = Dtype::f32;
    Shape shape = {};
    Decoding decoding = {};
    // A distributed tensor.
    StatedTensor said = {};
    bool parameter = false;
    bool requires_grad = false;
    // A DTensor: the mesh of the lowest rank, and how it is cut. If _StridedShard can be read in two ways, `other` is
    // the second one.
    std::uint32_t mesh = 0;
    std::optional<Sharding> sharding = {};
    std::optional<Sharding> other = {};
};

/// The tree of the lowest rank. Immutable, and shared by the threads that read the other ranks.
class Skeleton {
public:
    /// Decides the role of a plain tensor from its name and the tensor.
    using RoleOf = std::function<TensorRole(std::string_view name, const LazyTensor& tensor)>;

    /// Reads the distributed tensors of the tree. Throws what ShardedNodes::read() throws, with the tensor's name, and
    /// pickle_too_large if all names together are too long.
    /// `lists` are those of ShardedNodes; they are not kept.
    Skeleton(StateTree tree, const RankNames& names, RankMeshes& meshes, const RoleOf& role_of,
             const ShardLists* lists = nullptr);

    const StateTree& tree() const noexcept { return tree_; }
    StateTree take_tree() { return std::move(tree_); }
    const std::vector<SkeletonTensor>& tensors() const noexcept { return tensors_; }
    /// Returns the number of the tensor that a node is, or nothing.
    std::optional<std::uint32_t> tensor_at(StateTree::NodeId node) const;
    bool has_tensors(StateTree::NodeId node) const { return with_tensors_[node]; }
    /// Returns true if a tensor is distributed or in pieces.
    bool has_parts() const noexcept { return has_parts_; }
    /// Returns true if a tensor is a DTensor, so that it has a mesh.
    bool has_meshes() const noexcept;

private:
    static constexpr std::uint32_t none = UINT32_MAX;

    StateTree tree_;
    std::vector<bool> with_tensors_;
    std::vector<SkeletonTensor> tensors_ = {};
    std::vector<std::uint32_t> numbers_;  ///< by node: the number of the tensor
    bool has_parts_ = false;
};

}  // namespace safemap::SAFEMAP_ABI::distributed
