// Tests which regions of a tensor a rank holds: against lists of indices that are cut in plain loops
// (reference/slow_sharding.hpp), for random meshes, placements and orders; and single cases, some of them taken from
// the sources of torch.
#include "distributed/ranks/mesh.hpp"

#include "doctest_safemap.hpp"
#include "reference/slow_sharding.hpp"
#include "soak.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace mesh_test {

using namespace safemap;
using distributed::boxes_of;
using distributed::coordinates_of;
using distributed::CutOrder;
using distributed::Interval;
using distributed::LocalBox;
using distributed::Mesh;
using distributed::MeshPlacement;
using distributed::Sharding;

namespace {

using Numbers = slow::Numbers;
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

MeshPlacement replicate() { return {}; }
MeshPlacement shard(std::int64_t dimension) { return {.kind = MeshPlacement::Kind::shard, .dimension = dimension}; }
MeshPlacement strided(std::int64_t dimension, std::uint64_t factor) {
    return {.kind = MeshPlacement::Kind::strided, .dimension = dimension, .split_factor = factor};
}

/// A tensor on a mesh, and how its placements say so.
struct Case : slow::Sharded {
    std::vector<MeshPlacement> placements = {};

    Shape shape() const { return Shape(std::span<const std::uint64_t>(whole)); }
};

/// Returns each element of a box as its place in the local value and in the whole, which are coordinates in turn.
std::vector<std::pair<Numbers, Numbers>> elements_of(const LocalBox& box) {
    std::vector<std::pair<Numbers, Numbers>> out;
    const std::size_t rank = box.extent.size();
    Numbers at(rank, 0);
    for (;;) {
        Numbers local(rank);
        Numbers whole(rank);
        for (std::size_t d = 0; d < rank; ++d) {
            local[d] = box.local_start[d] + at[d];
            whole[d] = box.whole_start[d] + at[d];
        }
        out.emplace_back(local, whole);
        std::size_t d = rank;
        while (d > 0 && ++at[d - 1] == box.extent[d - 1]) at[--d] = 0;
        if (d == 0) return out;
    }
}

std::uint64_t volume(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

/// Compares the local values of all ranks with the twin. Ranks that are the first to hold a region together have every
/// element once.
void compare(const Case& one, const Sharding& sharding) {
    std::set<Numbers> covered;
    std::uint64_t elements = 0;
    bool several = false;
    for (std::uint64_t place = 0; place < one.ranks(); ++place) {
        const Numbers at = coordinates_of(one.mesh, place);
        const std::vector<Numbers> held = one.held(at);
        Shape shape;
        for (const Numbers& list : held) shape.push_back(list.size());
        REQUIRE(sharding.local_shape(at) == shape);
        const std::vector<LocalBox> boxes = boxes_of(sharding, at, unlimited);
        several = several || boxes.size() > 1;
        std::uint64_t seen = 0;
        for (const LocalBox& box : boxes) {
            REQUIRE(volume(box.extent) > 0);
            for (const auto& [local, whole] : elements_of(box)) {
                for (std::size_t d = 0; d < local.size(); ++d) REQUIRE(held[d].at(local[d]) == whole[d]);
                if (sharding.replica_of(at) == 0) covered.insert(whole);
                ++seen;
            }
        }
        REQUIRE(seen == volume(shape));
        if (sharding.replica_of(at) == 0) elements += seen;
    }
    CHECK(covered.size() == elements);
    CHECK(elements == volume(one.shape()));
    if (several) CHECK(sharding.interleaves());
}

class Random {
public:
    explicit Random(unsigned seed) : random_(seed) {}
    std::uint64_t operator()(std::uint64_t low, std::uint64_t high) {
        return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
    }
    template <class List> void shuffle(List& list) { std::shuffle(list.begin(), list.end(), random_); }

private:
    std::mt19937 random_;
};

/// Draws a tensor whose dimensions are each cut by some dimensions of a mesh, in a random order.
Case random_case(Random& random) {
    Case one;
    const std::uint64_t rank = random(1, 3);
    for (std::uint64_t d = 0; d < rank; ++d) one.whole.push_back(random(0, 17));
    one.orders.resize(rank);
    const std::uint64_t dimensions = random(1, 3);
    for (std::uint64_t m = 0; m < dimensions; ++m) {
        one.mesh.push_back(random(1, 4));
        one.pieces.push_back(1);
        one.placements.push_back(replicate());
        if (random(0, 4) == 0) continue;
        const std::uint64_t d = random(0, rank - 1);
        one.placements.back() = shard(static_cast<std::int64_t>(d));
        one.orders[d].push_back(m);
    }
    for (auto& order : one.orders) random.shuffle(order);
    return one;
}

/// Spells the orders of a case as factors.
void spell_as_factors(Case& one) {
    for (std::size_t d = 0; d < one.orders.size(); ++d)
        for (const std::size_t m : one.orders[d])
            if (const std::uint64_t factor = one.factor(d, m); factor > 1)
                one.placements[m] = strided(static_cast<std::int64_t>(d), factor);
}

TEST_CASE("random placements whose factors spell the order of the cuts") {
    Random random(soak::seed(1));
    for (int round = 0; round < soak::rounds(4000); ++round) {
        Case one = random_case(random);
        spell_as_factors(one);
        compare(one, Sharding(one.shape(), one.mesh, one.placements, CutOrder::by_factors));
    }
}

TEST_CASE("random placements with a stated order of the cuts") {
    Random random(soak::seed(2));
    for (int round = 0; round < soak::rounds(2000); ++round) {
        const Case one = random_case(random);
        std::vector<Sharding::Order> orders;
        for (std::size_t d = 0; d < one.orders.size(); ++d)
            if (!one.orders[d].empty()) orders.push_back({d, Numbers(one.orders[d].begin(), one.orders[d].end())});
        compare(one, Sharding(one.shape(), one.mesh, one.placements, CutOrder::by_factors, orders));
    }
}

TEST_CASE("random interleaved placements in the order of the mesh") {
    Random random(soak::seed(3));
    for (int round = 0; round < soak::rounds(4000); ++round) {
        Case one = random_case(random);
        for (auto& order : one.orders) std::sort(order.begin(), order.end());
        for (std::size_t m = 0; m < one.mesh.size(); ++m) {
            if (!one.placements[m].cuts() || random(0, 1) == 0) continue;
            one.pieces[m] = random(1, 5);
            one.placements[m] = strided(one.placements[m].dimension, one.pieces[m]);
        }
        compare(one, Sharding(one.shape(), one.mesh, one.placements, CutOrder::by_mesh));
    }
}

Numbers flat(const Sharding& sharding, const Numbers& coordinates) {
    Numbers out;
    for (const Interval& one : sharding.local_indices(0, coordinates, unlimited))
        for (std::uint64_t i = 0; i < one.count; ++i) out.push_back(one.start + i);
    return out;
}

TEST_CASE("FSDP over tensor parallelism cuts what tensor parallelism has left") {
    // 8 rows over 4 x 2 ranks: tensor parallelism gives 4 rows, which FSDP cuts into four.
    const std::vector<MeshPlacement> placements = {strided(0, 2), shard(0)};
    const Sharding sharding({8}, {4, 2}, placements, CutOrder::by_factors);
    CHECK(flat(sharding, {0, 0}) == Numbers{0});
    CHECK(flat(sharding, {0, 1}) == Numbers{4});
    CHECK(flat(sharding, {3, 0}) == Numbers{3});
    CHECK(flat(sharding, {3, 1}) == Numbers{7});
    CHECK_FALSE(sharding.interleaves());
    // 9 rows: 5 and 4. The last rank of FSDP has none of the 5, which it cuts by two, and one of the 4.
    const Sharding uneven({9}, {4, 2}, placements, CutOrder::by_factors);
    CHECK(flat(uneven, {2, 0}) == Numbers{4});
    CHECK(flat(uneven, {3, 0}).empty());
    CHECK(flat(uneven, {3, 1}) == Numbers{8});
    // Cut in the order of the mesh, the one row of the last rank goes to the other rank of tensor parallelism.
    const Sharding by_mesh({9}, {4, 2}, placements, CutOrder::by_mesh);
    CHECK(flat(by_mesh, {3, 0}) == Numbers{8});
    CHECK(flat(by_mesh, {3, 1}).empty());
}

TEST_CASE("packed weights under tensor parallelism") {
    // Gate and up, 6 rows each, over 3 ranks: each has two rows of both.
    const Sharding packed({12}, {3}, std::vector{strided(0, 2)}, CutOrder::by_factors);
    CHECK(packed.interleaves());
    CHECK(flat(packed, {1}) == Numbers{2, 3, 8, 9});
    CHECK(boxes_of(packed, Numbers{1}, unlimited).size() == 2);
    // FSDP over them cuts the local value of tensor parallelism, which is packed.
    const Sharding both({12}, {2, 3}, std::vector{strided(0, 3), strided(0, 2)}, CutOrder::by_factors);
    CHECK(flat(both, {0, 1}) == Numbers{2, 3});
    CHECK(flat(both, {1, 1}) == Numbers{8, 9});
    // A mesh of one has all rows, in order.
    const Sharding one({7}, {1}, std::vector{strided(0, 3)}, CutOrder::by_factors);
    CHECK(one.local_indices(0, Numbers{0}, 1) == std::vector<Interval>{{0, 7}});
}

TEST_CASE("the example of torch for an uneven _StridedShard") {
    const Sharding sharding({9}, {4}, std::vector{strided(0, 2)}, CutOrder::by_mesh);
    CHECK(flat(sharding, {0}) == Numbers{0, 1, 5});
    CHECK(flat(sharding, {1}) == Numbers{2, 3, 6});
    CHECK(flat(sharding, {2}) == Numbers{4, 7});
    CHECK(flat(sharding, {3}) == Numbers{8});
}

TEST_CASE("replicas, and tensors without dimensions or elements") {
    const Sharding hybrid({5, 4}, {2, 3}, std::vector{replicate(), shard(-2)}, CutOrder::by_factors);
    CHECK(hybrid.replica_of(Numbers{0, 2}) == 0);
    CHECK(hybrid.replica_of(Numbers{1, 0}) == 1);
    CHECK(hybrid.local_shape(Numbers{1, 2}) == Shape{1, 4});
    const Sharding scalar({}, {2, 2}, std::vector{replicate(), replicate()}, CutOrder::by_factors);
    CHECK(scalar.replica_of(Numbers{1, 1}) == 3);
    CHECK(boxes_of(scalar, Numbers{1, 1}, 1).size() == 1);
    const Sharding empty({0, 4}, {2}, std::vector{shard(1)}, CutOrder::by_factors);
    CHECK(boxes_of(empty, Numbers{1}, 1).empty());
}

TEST_CASE("huge sizes and factors take neither time nor memory") {
    constexpr std::uint64_t huge = std::uint64_t{1} << 62;
    const Sharding wide({huge}, {3}, std::vector{shard(0)}, CutOrder::by_factors);
    CHECK(wide.local_shape(Numbers{2}) == Shape{huge - 2 * (huge / 3 + 1)});
    // Pieces of one index, all of them of the first rank.
    const Sharding fine({huge}, {2}, std::vector{strided(0, huge)}, CutOrder::by_factors);
    CHECK(fine.local_shape(Numbers{0}) == Shape{huge});
    CHECK(fine.local_shape(Numbers{1}) == Shape{0});
    CHECK(fine.local_indices(0, Numbers{0}, 1) == std::vector<Interval>{{0, huge}});
    CHECK(fine.local_indices(0, Numbers{1}, 1).empty());
    const Sharding many({huge}, {2}, std::vector{strided(0, huge / 4)}, CutOrder::by_factors);
    CHECK_FAULT(many.local_indices(0, Numbers{1}, 1000), Errc::pickle_too_large);
    CHECK_FAULT(boxes_of(many, Numbers{1}, 1000), Errc::pickle_too_large);
}

TEST_CASE("meshes and placements are printed as torch spells them") {
    CHECK(distributed::to_string(Mesh{.shape = {2, 4}, .ranks = {}, .names = {"dp", "tp"}}) == "[2, 4] (dp, tp)");
    CHECK(distributed::to_string(std::vector{replicate(), shard(1), strided(0, 2)}) ==
          "(Replicate, Shard(1), _StridedShard(0, 2))");
    const Mesh mesh{.shape = {2, 2}, .ranks = {0, 2, 1, 3}, .names = {}};
    CHECK(distributed::place_of(mesh, 1) == 2);
    CHECK_FALSE(distributed::place_of(mesh, 4));
    CHECK(coordinates_of(mesh.shape, 2) == Numbers{1, 0});
}

}  // namespace

}  // namespace mesh_test
