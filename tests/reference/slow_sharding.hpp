// How torch shares a tensor among ranks, in plain loops over lists of indices: the slow twin of distributed/mesh.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace slow {

using Numbers = std::vector<std::uint64_t>;

/// Cuts a list as torch.chunk does, and adds empty chunks for the ranks that torch.chunk leaves out.
std::vector<Numbers> chunks(const Numbers& list, std::uint64_t count);

/// Cuts a list as _StridedShard._split_tensor does, and returns the list of one rank.
Numbers cut(const Numbers& list, std::uint64_t pieces, std::uint64_t ranks, std::uint64_t rank);

/// A tensor on a mesh. For each of its dimensions, `orders` has the dimensions of the mesh in the order in which they
/// cut it.
struct Sharded {
    Numbers whole = {};
    Numbers mesh = {};
    std::vector<std::vector<std::size_t>> orders = {};
    Numbers pieces = {};  ///< by mesh dimension: 1, or more if the cut interleaves

    /// Returns the indices of each dimension that a rank holds.
    std::vector<Numbers> held(const Numbers& coordinates) const;
    std::uint64_t ranks() const;

    /// Returns the _StridedShard factor of a mesh dimension, as DTensorSpec._convert_shard_order_to_StridedShard does:
    /// the product of the sizes of those that come before it in the order and after it in the mesh.
    std::uint64_t factor(std::size_t dimension, std::size_t mesh_dimension) const;
};

/// Returns the row-major numbers of the elements of the whole tensor that a rank holds, in the order in which it holds
/// them.
Numbers elements(const Sharded& one, const Numbers& coordinates);

}  // namespace slow
