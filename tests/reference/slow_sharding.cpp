// Cuts lists of indices into chunks, one dimension of the mesh after the other.
#include "reference/slow_sharding.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace slow {

std::vector<Numbers> chunks(const Numbers& list, std::uint64_t count) {
    std::vector<Numbers> out;
    const std::uint64_t length = (list.size() + count - 1) / count;
    for (std::size_t at = 0; at < list.size(); at += length)
        out.emplace_back(list.begin() + static_cast<std::ptrdiff_t>(at),
                         list.begin() + static_cast<std::ptrdiff_t>(std::min(at + length, list.size())));
    out.resize(count);
    return out;
}

Numbers cut(const Numbers& list, std::uint64_t pieces, std::uint64_t ranks, std::uint64_t rank) {
    Numbers out;
    for (const Numbers& piece : chunks(list, pieces)) {
        const Numbers own = chunks(piece, ranks)[rank];
        out.insert(out.end(), own.begin(), own.end());
    }
    return out;
}

std::vector<Numbers> Sharded::held(const Numbers& coordinates) const {
    std::vector<Numbers> all;
    for (std::size_t d = 0; d < whole.size(); ++d) {
        Numbers list(whole[d]);
        std::iota(list.begin(), list.end(), 0);
        for (const std::size_t m : orders[d]) list = cut(list, pieces[m], mesh[m], coordinates[m]);
        all.push_back(std::move(list));
    }
    return all;
}

std::uint64_t Sharded::ranks() const {
    return std::accumulate(mesh.begin(), mesh.end(), std::uint64_t{1}, std::multiplies<>());
}

std::uint64_t Sharded::factor(std::size_t dimension, std::size_t mesh_dimension) const {
    std::uint64_t product = 1;
    for (const std::size_t m : orders[dimension]) {
        if (m == mesh_dimension) break;
        if (m > mesh_dimension) product *= mesh[m];
    }
    return product;
}

Numbers elements(const Sharded& one, const Numbers& coordinates) {
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
