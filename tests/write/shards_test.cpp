// Tests of shards.hpp against huggingface_hub's results and slow references. From top to bottom: the greedy split, the
// balanced split, the split by layers, 100,000 tensors, overflow, file names.
#include "write/shards.hpp"
#include "doctest_safemap.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace shards_test {

using namespace safemap;
using write::Sized;
using write::Split;

namespace {

using Shards = std::vector<std::vector<std::uint32_t>>;

/// The rule written directly: a list of dictionaries, searched from the front.
Split slow_split(const std::vector<Sized>& tensors, std::uint64_t max, std::uint64_t max_header = UINT64_MAX) {
    Split split;
    std::vector<std::uint32_t> current;
    const auto size_of = [&](const std::vector<std::uint32_t>& shard) {
        std::uint64_t sum = 0;
        for (const auto i : shard) sum += tensors[i].size;
        return sum;
    };
    // All tensors of a storage are in the header of its shard.
    const auto header_of = [&](const std::vector<std::uint32_t>& shard) {
        std::uint64_t sum = 0;
        for (const auto i : shard)
            for (std::uint32_t j = 0; j < tensors.size(); ++j)
                if (i == j || (tensors[i].storage != 0 && tensors[i].storage == tensors[j].storage))
                    sum += tensors[j].header;
        return sum;
    };
    std::vector<std::pair<std::uint64_t, std::vector<std::uint32_t>>> storages;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].storage != 0) {
            const auto known = std::find_if(storages.begin(), storages.end(),
                                            [&](const auto& entry) { return entry.first == tensors[i].storage; });
            if (known != storages.end()) {
                known->second.push_back(i);
                continue;
            }
            storages.push_back({tensors[i].storage, {i}});
        }
        split.total_size += tensors[i].size;
        if (tensors[i].size > max || header_of({i}) > max_header) {
            split.shards.push_back({i});
            continue;
        }
        if (size_of(current) + tensors[i].size > max || header_of(current) + header_of({i}) > max_header) {
            split.shards.push_back(current);
            current.clear();
        }
        current.push_back(i);
    }
    if (!current.empty()) split.shards.push_back(current);
    for (const auto& [storage, members] : storages)
        for (auto& shard : split.shards)
            if (std::find(shard.begin(), shard.end(), members.front()) != shard.end()) {
                for (const auto i : members)
                    if (std::find(shard.begin(), shard.end(), i) == shard.end()) shard.push_back(i);
                break;
            }
    return split;
}

}  // namespace

TEST_CASE("tensors are split as huggingface_hub splits them") {
    struct Row {
        const char* input;
        std::vector<Sized> tensors;
        Shards shards;
        std::uint64_t total;
    };
    // The eleventh of the vectors, a string among the tensors, is missing: values that are not tensors are not listed.
    const std::vector<Row> rows = {
        {"6,6,2,6,2,2", {{6}, {6}, {2}, {6}, {2}, {2}}, {{0}, {1, 2}, {3, 4, 5}}, 24},
        {"a2 big12 b2 c9", {{2}, {12}, {2}, {9}}, {{1}, {0, 2}, {3}}, 25},
        {"a5 b5 c1", {{5}, {5}, {1}}, {{0, 1}, {2}}, 11},
        {"a10 b10", {{10}, {10}}, {{0}, {1}}, 20},
        {"a0 b10 c0 d1", {{0}, {10}, {0}, {1}}, {{0, 1, 2}, {3}}, 11},
        {"a4~1 b4~1 c8~2 d4~1 e1", {{4, 1}, {4, 1}, {8, 2}, {4, 1}, {1}}, {{0, 1, 3}, {2, 4}}, 13},
        {"a4~1 c8~2 b4~1 d8~2 e1", {{4, 1}, {8, 2}, {4, 1}, {8, 2}, {1}}, {{0, 2}, {1, 4, 3}}, 13},
        {"a20~1 x1 b20~1", {{20, 1}, {1}, {20, 1}}, {{0, 2}, {1}}, 21},
        {"a12", {{12}}, {{0}}, 12},
        {"a1", {{1}}, {{0}}, 1},
        {"(empty)", {}, {}, 0},
    };
    for (const Row& row : rows) {
        CAPTURE(row.input);
        const Split split = write::split(row.tensors, 10);
        CHECK(split.shards == row.shards);
        CHECK(split.total_size == row.total);
    }
}

TEST_CASE("random splits agree with the slow reference") {
    std::mt19937_64 random(20261121);
    const auto up_to = [&](std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n)(random); };
    for (int round = 0; round < 2'000; ++round) {
        CAPTURE(round);
        const std::uint64_t max = up_to(20);
        std::vector<Sized> tensors(up_to(30));
        for (auto& tensor : tensors) tensor = {.size = up_to(12), .storage = up_to(2) == 0 ? 1 + up_to(5) : 0};
        const Split fast = write::split(tensors, max);
        const Split slow = slow_split(tensors, max);
        REQUIRE(fast.shards == slow.shards);
        REQUIRE(fast.total_size == slow.total_size);
    }
}

TEST_CASE("random splits keep headers within their limit, whatever the strategy") {
    std::mt19937_64 random(20261128);
    const auto up_to = [&](std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n)(random); };
    for (int round = 0; round < 3'000; ++round) {
        CAPTURE(round);
        const std::uint64_t max = up_to(30);
        const std::uint64_t max_header = up_to(30);
        std::vector<Sized> tensors(up_to(30));
        for (auto& tensor : tensors)
            tensor = {.size = up_to(12),
                      .storage = up_to(2) == 0 ? 1 + up_to(5) : 0,
                      .layer = up_to(2) == 0 ? 1 + up_to(5) : 0,
                      .header = up_to(9)};
        REQUIRE(write::split(tensors, {max, max_header}).shards == slow_split(tensors, max, max_header).shards);
        for (const ShardStrategy strategy :
             {ShardStrategy::greedy, ShardStrategy::balanced, ShardStrategy::by_prefix}) {
            const Split split = write::split(tensors, {max, max_header}, strategy);
            std::vector<int> times(tensors.size());
            for (const auto& shard : split.shards) {
                std::uint64_t header = 0;
                for (const auto i : shard) header += tensors[i].header;
                for (const auto i : shard) ++times[i];
                if (header <= max_header) continue;
                // One storage or, with layers, one set of layers and storages that belong together.
                for (const auto i : shard)
                    CHECK((shard.size() == 1 || tensors[i].storage != 0 ||
                           (strategy == ShardStrategy::by_prefix && tensors[i].layer != 0)));
            }
            CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
            if (strategy == ShardStrategy::balanced)
                CHECK(split.shards.size() == write::split(tensors, {max, max_header}).shards.size());
            CHECK(write::split(tensors, {max, UINT64_MAX}, strategy).shards ==
                  write::split(tensors, max, strategy).shards);
        }
    }
}

namespace {

/// The greedy rule with layers instead of tensors: joins units that share a layer or a storage until nothing changes.
Split slow_by_prefix(const std::vector<Sized>& tensors, std::uint64_t max) {
    std::vector<std::vector<std::uint32_t>> units;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) units.push_back({i});
    const auto belong = [&](std::uint32_t a, std::uint32_t b) {
        return (tensors[a].layer != 0 && tensors[a].layer == tensors[b].layer) ||
               (tensors[a].storage != 0 && tensors[a].storage == tensors[b].storage);
    };
    for (bool changed = true; changed;) {
        changed = false;
        for (std::size_t a = 0; a < units.size(); ++a)
            for (std::size_t b = units.size() - 1; b > a; --b) {
                const bool joined = std::any_of(units[a].begin(), units[a].end(), [&](auto i) {
                    return std::any_of(units[b].begin(), units[b].end(), [&](auto k) { return belong(i, k); });
                });
                if (!joined) continue;
                units[a].insert(units[a].end(), units[b].begin(), units[b].end());
                units.erase(units.begin() + static_cast<std::ptrdiff_t>(b));
                changed = true;
            }
    }
    std::vector<Sized> sizes;
    for (auto& unit : units) {
        std::sort(unit.begin(), unit.end());
        std::uint64_t size = 0;
        for (const auto i : unit) {
            const bool first = std::none_of(unit.begin(), unit.end(), [&](auto k) {
                return k < i && tensors[i].storage != 0 && tensors[k].storage == tensors[i].storage;
            });
            if (first) size += tensors[i].size;
        }
        sizes.push_back({.size = size});
    }
    const Split of_units = slow_split(sizes, max);
    Split split{.shards = {}, .total_size = of_units.total_size, .large_layers = {}};
    for (const auto& shard : of_units.shards) {
        split.shards.emplace_back();
        for (const auto unit : shard)
            split.shards.back().insert(split.shards.back().end(), units[unit].begin(), units[unit].end());
        std::sort(split.shards.back().begin(), split.shards.back().end());
    }
    return split;
}

/// Returns the smallest possible largest run when `sizes` are cut into `runs` runs, by dynamic programming.
std::uint64_t smallest_largest(const std::vector<std::uint64_t>& sizes, std::size_t runs) {
    // best[r][n]: the first n sizes in r runs.
    std::vector<std::vector<std::uint64_t>> best(runs + 1, std::vector<std::uint64_t>(sizes.size() + 1, UINT64_MAX));
    best[0][0] = 0;
    for (std::size_t r = 1; r <= runs; ++r)
        for (std::size_t n = 0; n <= sizes.size(); ++n) {
            std::uint64_t run = 0;
            for (std::size_t from = n; from-- > 0;) {
                run += sizes[from];
                if (best[r - 1][from] != UINT64_MAX)
                    best[r][n] = std::min(best[r][n], std::max(run, best[r - 1][from]));
            }
        }
    return best[runs][sizes.size()];
}

struct Random {
    std::mt19937_64 engine{20261121};  // NOLINT: the same tensors every time

    std::uint64_t up_to(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n)(engine); }
    std::vector<Sized> tensors(std::size_t most) {
        std::vector<Sized> tensors(up_to(most));
        for (auto& tensor : tensors)
            tensor = {.size = up_to(12),
                      .storage = up_to(2) == 0 ? 1 + up_to(5) : 0,
                      .layer = up_to(2) != 0 ? 1 + up_to(4) : 0};
        return tensors;
    }
};

void check_every_tensor_once(const Split& split, std::size_t tensors) {
    std::vector<std::uint32_t> all;
    for (const auto& shard : split.shards) {
        CHECK_FALSE(shard.empty());
        all.insert(all.end(), shard.begin(), shard.end());
    }
    std::sort(all.begin(), all.end());
    REQUIRE(all.size() == tensors);
    for (std::uint32_t i = 0; i < tensors; ++i) CHECK(all[i] == i);
}

}  // namespace

TEST_CASE("balanced shards are as few as greedy ones, and of nearly equal size") {
    const auto shards_of = [](const std::vector<Sized>& tensors, std::uint64_t max) {
        return write::split(tensors, max, ShardStrategy::balanced).shards;
    };
    // Greedy would make 10 and 2.
    CHECK(shards_of({{2}, {2}, {2}, {2}, {2}, {2}}, 10) == Shards{{0, 1, 2}, {3, 4, 5}});
    CHECK(shards_of({{1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}}, 3) ==
          Shards{{0, 1}, {2, 3}, {4, 5, 6}, {7, 8, 9}});
    // A tensor that is too large has a shard of its own, before the open one.
    CHECK(shards_of({{4}, {11}, {4}, {4}, {4}}, 10) == Shards{{1}, {0, 2}, {3, 4}});
    CHECK(shards_of({{12}}, 10) == Shards{{0}});
    CHECK(shards_of({{0}, {0}}, 0) == Shards{{0, 1}});
    CHECK(shards_of({}, 10).empty());
    // The second tensor of a storage follows the first.
    CHECK(shards_of({{6, 1}, {6}, {6}, {6}, {6, 1}}, 12) == Shards{{0, 1, 4}, {2, 3}});
}

TEST_CASE("random balanced splits are optimal") {
    Random random;
    for (int round = 0; round < 2'000; ++round) {
        CAPTURE(round);
        const std::uint64_t max = random.up_to(30);
        const auto tensors = random.tensors(24);
        const Split split = write::split(tensors, max, ShardStrategy::balanced);
        check_every_tensor_once(split, tensors.size());
        const Split greedy = write::split(tensors, max);
        CHECK(split.shards.size() == greedy.shards.size());
        CHECK(split.total_size == greedy.total_size);

        // The sizes of all runs in order: one per storage, without tensors that are too large.
        std::vector<std::uint64_t> sizes;
        std::vector<std::uint64_t> seen;
        std::vector<bool> counted(tensors.size());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const auto storage = tensors[i].storage;
            if (storage != 0 && std::find(seen.begin(), seen.end(), storage) != seen.end()) continue;
            seen.push_back(storage);
            counted[i] = true;
            if (tensors[i].size <= max) sizes.push_back(tensors[i].size);
        }
        std::vector<std::uint32_t> order;
        std::uint64_t largest = 0;
        std::size_t runs = 0;
        for (const auto& shard : split.shards) {
            std::uint64_t size = 0;
            bool large = false;
            for (const auto i : shard) {
                if (!counted[i]) continue;
                large = tensors[i].size > max;
                size += tensors[i].size;
                if (!large) order.push_back(i);
            }
            if (large) continue;
            ++runs;
            largest = std::max(largest, size);
        }
        CHECK(std::is_sorted(order.begin(), order.end()));
        if (runs > 0) CHECK(largest == smallest_largest(sizes, runs));
        CHECK(largest <= max);
        if (runs > 1) CHECK(smallest_largest(sizes, runs - 1) > max);
    }
}

TEST_CASE("a layer is never split, wherever its tensors are") {
    const auto split = [](const std::vector<Sized>& tensors) {
        return write::split(tensors, 10, ShardStrategy::by_prefix);
    };
    CHECK(split({{4}, {4, 0, 1}, {4, 0, 1}, {4}, {2, 0, 1}}).shards == Shards{{0}, {1, 2, 4}, {3}});
    CHECK(split({{4, 0, 1}, {4, 0, 2}, {1, 0, 1}, {1, 0, 2}, {1}}).shards == Shards{{0, 1, 2, 3}, {4}});
    // Layers that share a storage are one layer; only the first tensor of a storage counts.
    CHECK(split({{4, 7, 1}, {3, 0, 1}, {2}, {4, 7, 2}, {3, 0, 2}}).shards == Shards{{0, 1, 3, 4}, {2}});

    const Split large = split({{4}, {8, 0, 1}, {2}, {8, 0, 1}, {11}});
    CHECK(large.shards == Shards{{1, 3}, {4}, {0, 2}});
    REQUIRE(large.large_layers.size() == 1);  // a single tensor is not a layer
    CHECK(large.large_layers[0].tensor == 1);
    CHECK(large.large_layers[0].shard == 0);
    CHECK(large.large_layers[0].size == 16);
}

TEST_CASE("random splits by layers agree with the slow reference") {
    Random random;
    for (int round = 0; round < 2'000; ++round) {
        CAPTURE(round);
        const std::uint64_t max = random.up_to(40);
        const auto tensors = random.tensors(24);
        const Split fast = write::split(tensors, max, ShardStrategy::by_prefix);
        check_every_tensor_once(fast, tensors.size());
        const Split slow = slow_by_prefix(tensors, max);
        REQUIRE(fast.shards == slow.shards);
        REQUIRE(fast.total_size == slow.total_size);
    }
}

TEST_CASE("a layer's name is the part up to the first number") {
    CHECK(write::layer_of("model.layers.12.mlp.w") == "model.layers.12");
    CHECK(write::layer_of("model.layers.12.experts.3.w") == "model.layers.12");
    CHECK(write::layer_of("model.layers.12") == "model.layers.12");
    CHECK(write::layer_of("h/0/w") == "h/0");
    CHECK(write::layer_of("0.weight") == "0");
    CHECK(write::layer_of("a..1.b") == "a..1");
    for (const char* name : {"lm_head.weight", "layer1.weight", "conv_2d.0a", "", ".", "a.-1", "x."})
        CHECK(write::layer_of(name).empty());
}

TEST_CASE("100,000 tensors are split quickly by every strategy") {
    std::vector<Sized> tensors(100'000);
    for (std::size_t i = 0; i < tensors.size(); ++i)
        tensors[i] = {.size = 1'000 + i % 7, .storage = i % 10 == 0 ? 1 + i / 20 : 0, .layer = 1 + i / 12};
    for (const auto strategy : {ShardStrategy::greedy, ShardStrategy::balanced, ShardStrategy::by_prefix}) {
        const Split split = write::split(tensors, 1'000'000, strategy);
        std::size_t members = 0;
        for (const auto& shard : split.shards) members += shard.size();
        CHECK(members == tensors.size());
        CHECK(split.shards.size() >= 95);
        CHECK(split.shards.size() < 105);
    }
}

TEST_CASE("sizes near 2^64 do not wrap") {
    const std::vector<Sized> tensors = {{UINT64_MAX - 3}, {2}, {1}, {1}};
    const Split split = write::split(std::span(tensors).first(3), UINT64_MAX - 1);
    CHECK(split.shards == Shards{{0, 1}, {2}});
    CHECK(split.total_size == UINT64_MAX);
    for (const auto strategy : {ShardStrategy::greedy, ShardStrategy::balanced, ShardStrategy::by_prefix}) {
        CHECK(write::split(std::span(tensors).first(3), UINT64_MAX, strategy).shards == Shards{{0, 1, 2}});
        CHECK_FAULT(write::split(tensors, UINT64_MAX, strategy), Errc::shape_overflow);
    }
}

TEST_CASE("shards have huggingface_hub's names") {
    CHECK(write::shard_name("model", 0, 1) == "model.safetensors");
    CHECK(write::shard_name("model", 0, 2) == "model-00001-of-00002.safetensors");
    CHECK(write::shard_name("model", 11, 345) == "model-00012-of-00345.safetensors");
    CHECK(write::shard_name("adapter_model", 0, 1) == "adapter_model.safetensors");
    CHECK(write::index_name("model") == "model.safetensors.index.json");
    CHECK(write::shard_name("model", 99'999, 123'456) == "model-100000-of-123456.safetensors");
}

}  // namespace shards_test
