// Tests of shards.hpp: huggingface_hub's splits, run there.
#include "write/shards.hpp"
#include "doctest_safemap.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace safemap;
using write::Sized;
using write::Split;

namespace {

using Shards = std::vector<std::vector<std::uint32_t>>;

/// The rule once more, as it reads: a list of dictionaries, searched from the front.
Split slow_split(const std::vector<Sized>& tensors, std::uint64_t max) {
    Split split;
    std::vector<std::uint32_t> current;
    const auto size_of = [&](const std::vector<std::uint32_t>& shard) {
        std::uint64_t sum = 0;
        for (const auto i : shard) sum += tensors[i].size;
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
        if (tensors[i].size > max) {
            split.shards.push_back({i});
            continue;
        }
        if (size_of(current) + tensors[i].size > max) {
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
    // The eleventh of the vectors, a string among the tensors, never gets here: what is no tensor is not listed.
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

TEST_CASE("random splits agree with the slow twin") {
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

TEST_CASE("sizes near 2^64 do not wrap") {
    const std::vector<Sized> tensors = {{UINT64_MAX - 3}, {2}, {1}, {1}};
    const Split split = write::split(std::span(tensors).first(3), UINT64_MAX - 1);
    CHECK(split.shards == Shards{{0, 1}, {2}});
    CHECK(split.total_size == UINT64_MAX);
    CHECK_FAULT(write::split(tensors, UINT64_MAX), Errc::shape_overflow);
}

TEST_CASE("shards have hub's names") {
    CHECK(write::shard_name(0, 1) == "model.safetensors");
    CHECK(write::shard_name(0, 2) == "model-00001-of-00002.safetensors");
    CHECK(write::shard_name(11, 345) == "model-00012-of-00345.safetensors");
    CHECK(write::shard_name(99'999, 123'456) == "model-100000-of-123456.safetensors");
}
