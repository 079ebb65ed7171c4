// Tests affine maps of universal_checkpoint_info on random tensors: cut into a grid of boxes, of which each rank holds
// several, in a slice where they stand elsewhere, over the files of several ranks of data parallelism.
#include "distributed/parallel/merge.hpp"

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "soak.hpp"
#include "torch/parts.hpp"

#include <safemap/tensor_view.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace placement_test {

using namespace safemap;
using distributed::merge;
using distributed::ModelRank;
using distributed::ModelWeights;
using distributed::UniversalInfo;

namespace {

using Numbers = std::vector<std::uint32_t>;

LazyTensor spread(std::mt19937& random, const std::string& name, const Shape& shape, const Numbers& numbers) {
    std::vector<RunPiece> runs;
    for (std::uint64_t first = 0; first < numbers.size();) {
        const std::uint64_t count = std::min<std::uint64_t>(random() % numbers.size() + 1, numbers.size() - first);
        std::string bytes(count * 4, '\0');
        std::memcpy(bytes.data(), numbers.data() + first, bytes.size());
        runs.push_back({forge::source(bytes), 0, first, count});
        first += count;
    }
    return {name, stored_runs(Dtype::u32, shape, runs)};
}

Numbers numbers_of(const LazyTensor& tensor) {
    const TensorView view = tensor.load();
    Numbers numbers(view.bytes().size() / 4);
    std::memcpy(numbers.data(), view.bytes().data(), view.bytes().size());
    return numbers;
}

/// A place with strides, as the map writes it.
pt::Value place(std::uint64_t offset, std::uint64_t columns) {
    return pt::tuple({pt::integer(offset), pt::integers({columns, 1})});
}

/// A tensor that is cut into bands of columns. Each rank holds some of the bands, one below the other in its slice;
/// some bands are held by two ranks.
struct Banded {
    std::uint64_t rows = 0;
    std::uint64_t columns = 0;
    pt::Value map = pt::dict();
    std::vector<Shape> shapes = {};
    std::vector<Numbers> slices = {};  ///< The slices of the ranks; an element is its number in the whole.
};

Banded random_bands(std::mt19937& random) {
    Banded made{random() % 5 + 1, 0};
    const std::uint64_t width = random() % 3 + 1;
    const std::uint64_t ranks = random() % 3 + 2;
    const std::uint64_t bands = ranks + random() % 4;
    made.columns = bands * width;
    std::vector<std::vector<std::uint64_t>> held(ranks);
    for (std::uint64_t band = 0; band < bands; ++band) {
        held[band % ranks].push_back(band);
        if (random() % 4 == 0) held[(band + 1) % ranks].push_back(band);
    }
    pt::Value by_rank = pt::dict();
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
        pt::Value pieces = pt::list();
        Numbers slice;
        for (std::size_t i = 0; i < held[rank].size(); ++i) {
            const std::uint64_t first = held[rank][i] * width;
            pieces.push(pt::dict({{"shape", pt::integers({made.rows, width})},
                                  {"source", place(first, made.columns)},
                                  {"dest", place(i * made.rows * width, width)}}));
            for (std::uint64_t row = 0; row < made.rows; ++row)
                for (std::uint64_t column = 0; column < width; ++column)
                    slice.push_back(static_cast<std::uint32_t>(row * made.columns + first + column));
        }
        made.shapes.push_back({held[rank].size() * made.rows, width});
        by_rank.set(std::to_string(rank), pt::dict({{"shard_shape", pt::integers({made.shapes.back()[0], width})},
                                                    {"pieces", std::move(pieces)}}));
        made.slices.push_back(std::move(slice));
    }
    made.map = pt::dict({{"logical_shape", pt::integers({made.rows, made.columns})}, {"ranks", std::move(by_rank)}});
    return made;
}

UniversalInfo info_of(const pt::Value& map) {
    const pt::Value info =
        pt::dict({{"universal_checkpoint_version", pt::real(0.4)},
                  {"affine_map", pt::dict({{"version", pt::integer(1)}, {"params", pt::dict({{"w$", map}})}})}});
    const torch::Parts parts = torch::read_whole(forge::source(pt::Writer::file(info)));
    return distributed::read_universal_info(distributed::Value(parts.tree));
}

std::vector<ModelRank> ranks_of(std::mt19937& random, const Banded& banded) {
    std::vector<ModelRank> ranks;
    for (std::size_t rank = 0; rank < banded.slices.size(); ++rank) {
        Numbers moment = banded.slices[rank];
        for (std::uint32_t& number : moment) number += 1'000'000;
        ModelWeights joined;
        joined.weights.push_back({"w",
                                  spread(random, "w", banded.shapes[rank], banded.slices[rank]),
                                  ModelWeights::Weight::Kind::master,
                                  {{"exp_avg", spread(random, "exp_avg", banded.shapes[rank], moment)}}});
        ranks.push_back({rank, "rank " + std::to_string(rank), std::move(joined)});
    }
    return ranks;
}

}  // namespace

TEST_CASE("affine maps: random bands of columns, some of them on two ranks, make the whole and its moments") {
    std::mt19937 random(soak::seed(1));
    for (int round = 0; round < soak::rounds(200); ++round) {
        const Banded banded = random_bands(random);
        const UniversalInfo info = info_of(banded.map);
        CHECK(info.fault == "");
        const ModelWeights merged = merge(ranks_of(random, banded), &info);
        REQUIRE(merged.weights.size() == 1);
        CHECK(merged.notes.empty());
        const ModelWeights::Weight& weight = merged.weights.front();
        CHECK(weight.name == "w");
        CHECK(weight.tensor.shape() == Shape{banded.rows, banded.columns});
        REQUIRE(weight.state.size() == 1);
        const Numbers numbers = numbers_of(weight.tensor);
        const Numbers moment = numbers_of(weight.state.front().second);
        REQUIRE(numbers.size() == banded.rows * banded.columns);
        REQUIRE(moment.size() == numbers.size());
        std::uint32_t wrong = 0;
        for (std::uint32_t i = 0; i < numbers.size(); ++i)
            wrong += numbers[i] != i || moment[i] != i + 1'000'000 ? 1 : 0;
        CHECK(wrong == 0);
    }
}

TEST_CASE("affine maps: a band that two ranks hold is a replica, and small ones are compared") {
    std::mt19937 random(soak::seed(4));
    int shared = 0;
    for (int round = 0; round < soak::rounds(40, 2); ++round) {
        const Banded banded = random_bands(random);
        const UniversalInfo info = info_of(banded.map);
        std::vector<ModelRank> ranks = ranks_of(random, banded);
        std::size_t held = 0;
        for (const Shape& shape : banded.shapes) held += shape[0] / banded.rows;
        const std::size_t twice = held - banded.columns / banded.shapes[0][1];
        const ModelWeights merged = merge(ranks, &info);
        REQUIRE(merged.replicas.size() == twice);
        for (const auto& replica : merged.replicas) {
            CHECK(replica.name == "w");
            CHECK(replica.first_file != replica.other_file);
            CHECK(numbers_of(replica.first) == numbers_of(replica.other));
        }
        if (twice == 0) continue;
        ++shared;
        Numbers changed = banded.slices[1];
        for (std::uint32_t& number : changed) number += 7;
        ranks[1].joined.weights[0].tensor = spread(random, "w", banded.shapes[1], changed);
        const bool of_rank_1 = std::any_of(merged.replicas.begin(), merged.replicas.end(), [](const auto& replica) {
            return replica.first_file == "rank 1" || replica.other_file == "rank 1";
        });
        CHECK(merge(ranks, &info).notes.size() == (of_rank_1 ? 1U : 0U));
    }
    CHECK(shared > 0);
}

TEST_CASE("affine maps that leave a band out, or have boxes that overlap, are refused with the tensor") {
    std::mt19937 random(soak::seed(2));
    int refused = 0;
    for (int round = 0; round < soak::rounds(40, 2); ++round) {
        const Banded banded = random_bands(random);
        Banded shifted = banded;
        pt::Value& piece = shifted.map["ranks"]["0"]["pieces"][std::size_t{0}];
        // Band 0 is said to be where band 1 is.
        piece["source"] = place(shifted.shapes[0][1], banded.columns);
        const UniversalInfo info = info_of(shifted.map);
        const auto error = error_of([&] { static_cast<void>(merge(ranks_of(random, shifted), &info)); });
        if (!error) continue;  // the band is on another rank, too
        CHECK((error->code() == Errc::not_covered || error->code() == Errc::pieces_overlap));
        CHECK(error->tensor() == "w");
        ++refused;
    }
    CHECK(refused > 0);
}

TEST_CASE("affine maps of another form are a fault of the parameter, whose slices are listed by rank") {
    std::mt19937 random(3);
    const Banded banded = random_bands(random);
    const auto check_listed = [&](const pt::Value& map, const std::string& why) {
        const UniversalInfo info = info_of(map);
        const ModelWeights listed = merge(ranks_of(random, banded), &info);
        CHECK(listed.weights.size() == banded.slices.size());
        CHECK(listed.weights.front().name == "mp_rank_00/w");
        REQUIRE(listed.notes.size() == 1);
        INFO(listed.notes.front());
        CHECK(listed.notes.front().find(why) != std::string::npos);
    };
    const auto with = [&](auto&& change) {
        pt::Value map = banded.map;
        change(map);
        return map;
    };
    const auto first = [](pt::Value& map) -> pt::Value& { return map["ranks"]["0"]["pieces"][std::size_t{0}]; };
    check_listed(with([](pt::Value& map) { map.erase("logical_shape"); }), "malformed");
    check_listed(with([](pt::Value& map) { map["ranks"] = pt::list(); }), "malformed");
    check_listed(with([](pt::Value& map) { map["ranks"].keys[0] = "x"; }), "malformed");
    check_listed(with([](pt::Value& map) { map["ranks"].keys[0] = "99"; }), "malformed");
    check_listed(with([](pt::Value& map) { map["ranks"].keys[0] = "01"; }), "malformed");
    check_listed(with([](pt::Value& map) { map["ranks"]["0"].erase("shard_shape"); }), "malformed");
    check_listed(with([](pt::Value& map) { map["ranks"]["0"]["pieces"] = pt::integer(1); }), "malformed");
    check_listed(with([&](pt::Value& map) { first(map).erase("dest"); }), "malformed");
    check_listed(with([&](pt::Value& map) { first(map)["source"] = place(~0ULL >> 2, 1); }), "malformed");
    check_listed(with([&](pt::Value& map) { first(map)["shape"] = pt::integers({~0ULL >> 1, 4}); }), "malformed");
    check_listed(with([&](pt::Value& map) { first(map).set("scale", pt::real(0.5)); }), "scaled");
    check_listed(with([&](pt::Value& map) {
                     first(map)["shape"] = pt::integers({banded.rows, banded.columns + 1});
                 }),
                 "more than boxes");
    check_listed(with([](pt::Value& map) {
                     map["ranks"]["0"]["shard_shape"] = pt::integers({1000, map["ranks"]["0"]["pieces"].items.size()});
                 }),
                 "affine");
    check_listed(with([](pt::Value& map) {
                     map["ranks"].keys.pop_back();
                     map["ranks"].items.pop_back();
                 }),
                 "another number of ranks");
}

}  // namespace placement_test
