// Tests how units are divided over processes.
#include "write/cuts.hpp"

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace share_test {

using namespace safemap;
using write::first_unit_of;
using write::share_of;
using write::UnitRun;

namespace {

/// Returns the bytes of each unit, one by one.
std::vector<std::uint64_t> sizes_of(const std::vector<UnitRun>& runs) {
    std::vector<std::uint64_t> sizes;
    for (const UnitRun& run : runs) {
        std::uint64_t left = run.bytes;
        for (std::uint64_t unit = 0; unit < run.units; ++unit) {
            const std::uint64_t size = std::min(left, unit == 0 ? run.lead : run.block);
            sizes.push_back(size);
            left -= size;
        }
        CHECK(left == 0);
    }
    return sizes;
}

UnitRun run_of(std::uint32_t file, std::uint64_t bytes, std::uint64_t lead, std::uint64_t block) {
    lead = std::min(lead, bytes);
    return {file, bytes, 1 + (bytes - lead + block - 1) / block, lead, block};
}

}  // namespace

TEST_CASE("shares follow each other, hold every unit, and have about the same size") {
    const unsigned seed = soak::seed(191);
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    for (int round = 0; round < soak::rounds(400); ++round) {
        CAPTURE(round);
        std::vector<UnitRun> runs;
        const std::uint64_t block = 1 + random() % 100;
        for (std::uint32_t i = 0, file = 0; i < random() % 20; ++i, file += random() % 2 == 0 ? 1 : 0)
            runs.push_back(run_of(file, 1 + random() % 5'000, 1 + random() % block, block));
        const std::vector<std::uint64_t> sizes = sizes_of(runs);
        std::uint64_t total = 0;
        for (const std::uint64_t size : sizes) total += size;
        const auto ranks = static_cast<unsigned>(1 + random() % 9);
        std::uint64_t next = 0;
        for (unsigned rank = 0; rank < ranks; ++rank) {
            const auto share = share_of(runs, rank, ranks);
            CHECK(share.first == next);
            CHECK(share.last >= share.first);
            next = share.last;
            std::uint64_t bytes = 0;
            for (std::uint64_t unit = share.first; unit < share.last; ++unit) bytes += sizes[unit];
            const std::uint64_t fair = total / ranks;
            CHECK(bytes <= fair + fair / 8 + 2 * block + 1);
        }
        CHECK(next == sizes.size());
    }
}

TEST_CASE("a boundary near the end of a file is at its end") {
    const std::vector<UnitRun> files = {run_of(0, 1'020, 10, 10), run_of(1, 980, 10, 10), run_of(2, 1'000, 10, 10)};
    CHECK(first_unit_of(files, 0, 3) == 0);
    CHECK(first_unit_of(files, 1, 3) == 102);
    CHECK(first_unit_of(files, 2, 3) == 200);
    CHECK(first_unit_of(files, 3, 3) == 300);
    CHECK(first_unit_of(files, 1, 2) == 150);
    CHECK(first_unit_of({}, 1, 2) == 0);
    // More ranks than units: some have none.
    const std::vector<UnitRun> one = {run_of(0, 10, 10, 10)};
    CHECK(first_unit_of(one, 1, 4) == 0);
    CHECK(first_unit_of(one, 4, 4) == 1);
}

}  // namespace share_test
