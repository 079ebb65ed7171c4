// How torch shares a tensor among ranks, in plain loops over lists of indices: the slow twin of distributed/mesh.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace slow {

using Numbers = std::vector<std::uint64_t>;

/// Cuts a list as torch.chunk does, and adds empty chunks for the ranks that torch.chunk leaves out.
inline std::vector<Numbers> chunks(const Numbers& list, std::uint64_t count) {
    std::vector<Numbers> out;
    const std::uint64_t length = (list.size() + count - 1) / count;
    for (std::size_t at = 0; at < list.size(); at += length)
        out.emplace_back(list.begin() + static_cast<std::ptrdiff_t>(at),
                         list.begin() + static_cast<std::ptrdiff_t>(std::min(at + length, list.size())));
    out.resize(count);
    return out;
}

/// Cuts a list as _StridedShard._split_tensor does, and returns the list of one rank.
inline Numbers cut(const Numbers& list, std::uint64_t pieces, std::uint64_t ranks, std::uint64_t rank) {
    Numbers out;
    for (const Numbers& piece : chunks(list, pieces)) {
        const Numbers own = chunks(piece, ranks)[rank];
        out.insert(out.end(), own.begin(), own.end());
    }
    return out;
}

/// A tensor on a mesh. For each of its dimensions, `orders` has the dimensions of the mesh in the order in which they
/// cut it.
struct Sharded {
    Numbers whole = {};
    Numbers mesh = {};
    std::vector<std::vector<std::size_t>> orders = {};
    Numbers pieces = {};  ///< by mesh dimension: 1, or more if the cut interleaves

    /// Returns the indices of each dimension that a rank holds.
    std::vector<Numbers> held(const Numbers& coordinates) const {
        std::vector<Numbers> all;
        for (std::size_t d = 0; d < whole.size(); ++d) {
            Numbers list(whole[d]);
            std::iota(list.begin(), list.end(), 0);
            for (const std::size_t m : orders[d]) list = cut(list, pieces[m], mesh[m], coordinates[m]);
            all.push_back(std::move(list));
        }
        return all;
    }
    std::uint64_t ranks() const {
        return std::accumulate(mesh.begin(), mesh.end(), std::uint64_t{1}, std::multiplies<>());
    }

    /// Returns the _StridedShard factor of a mesh dimension, as DTensorSpec._convert_shard_order_to_StridedShard does:
    /// the product of the sizes of those that come before it in the order and after it in the mesh.
    std::uint64_t factor(std::size_t dimension, std::size_t mesh_dimension) const {
        std::uint64_t product = 1;
        for (const std::size_t m : orders[dimension]) {
            if (m == mesh_dimension) break;
            if (m > mesh_dimension) product *= mesh[m];
        }
        return product;
    }
};

/// Returns the row-major numbers of the elements of the whole tensor that a rank holds, in the order in which it holds
/// them.
inline Numbers elements(const Sharded& one, const Numbers& coordinates) {
    Numbers out = {0};
    const std::vector<Numbers> held = one.held(coordinates);
    for (std::size_t d = 0; d < held.size(); ++d) {
        Numbers next;
        for (const std::uint64_t before : out)
            for (const std::uint64_t i : held[d]) next.push_back(before * one.whole[d] + i);
        out = std::move(next);
    }
    return out;
}

}  // namespace slow
