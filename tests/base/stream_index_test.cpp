// Tests which states of a decoder are kept, without a decoder: their number, their distances and the nearest one.
#include "base/stream_index.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>

namespace stream_index_test {

using namespace safemap;

namespace {

constexpr std::uint64_t block = StreamIndex::block;

struct At final : StreamState {
    explicit At(std::uint64_t at) : position(at) {}
    std::uint64_t position;
};

/// Decodes [from, until) as a source does: it offers a state at each block.
void decode(StreamIndex& index, std::uint64_t from, std::uint64_t until) {
    for (std::uint64_t at = from - from % block + block; at <= until; at += block) {
        if (index.wants(at)) index.add(at, std::make_unique<At>(at));
        REQUIRE(index.count() <= StreamIndex::most);
    }
}

/// Returns how far a decoder runs to `offset` from the nearest state.
std::uint64_t run_to(const StreamIndex& index, std::uint64_t offset) {
    const auto found = index.best(offset);
    if (!found) return offset;
    CHECK(static_cast<const At*>(found->state)->position == found->position);
    REQUIRE(found->position <= offset);
    return offset - found->position;
}

}  // namespace

TEST_CASE("a stream of any size has few states, and one pass leaves one near each place") {
    for (const std::uint64_t size : {block, 100 * block, 224 * block, 225 * block, 10'000 * block, 1'000'000 * block}) {
        CAPTURE(size / block);
        StreamIndex index;
        decode(index, 0, size);
        CHECK(index.count() >= std::min<std::uint64_t>(size / block, StreamIndex::most_coarse / 2));
        std::uint64_t widest = block;
        while (size / widest > StreamIndex::most_coarse) widest *= 2;
        CHECK(index.spacing() == widest);
        for (std::uint64_t offset = 0; offset < size; offset += size / 97 + 1)
            CHECK(run_to(index, offset) < widest + block);
    }
    StreamIndex index;
    CHECK_FALSE(index.wants(0));
    CHECK_FALSE(index.best(block));
}

TEST_CASE("reads further and further back run over a large stream about once") {
    for (const std::uint64_t size : {100 * block, 10'000 * block, 100'000 * block}) {
        CAPTURE(size / block);
        StreamIndex index;
        decode(index, 0, size);
        std::uint64_t ran = 0;
        for (std::uint64_t i = 2000; i-- > 0;) {
            // A source decodes the block around the offset, unless it has kept it.
            const std::uint64_t offset = size / 2000 * i / block * block;
            const std::uint64_t run = run_to(index, offset);
            decode(index, offset - run, offset);
            ran += run;
        }
        // Within a spacing the first read runs over all of it, and the others over a part of a fine spacing.
        CHECK(ran <= size + 2000 * std::max(index.spacing() / StreamIndex::most_fine, block));
    }
}

TEST_CASE("wanted states have the distance that the spacing says, in any order of reads") {
    const unsigned seed = soak::seed(1);
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const int rounds = soak::rounds(40);
    for (int round = 0; round < rounds; ++round) {
        StreamIndex index;
        const std::uint64_t size = (1 + random() % 3000) * block;
        for (int reads = 0; reads < 50; ++reads) {
            const std::uint64_t offset = random() % size;
            const std::uint64_t run = run_to(index, offset);
            decode(index, offset - run, offset);
            CHECK(run_to(index, offset) < block);
        }
        const std::size_t before = index.count();
        const std::size_t left = index.thin();
        CHECK(left == index.count());
        CHECK(left <= before / 2);
    }
}

TEST_CASE("thinning ends with no state, and the index then begins anew") {
    StreamIndex index;
    decode(index, 0, 1000 * block);
    int times = 0;
    while (index.thin() > 0) REQUIRE(++times < 64);
    CHECK(index.count() == 0);
    CHECK(index.thin() == 0);
    CHECK(index.spacing() == block);
    decode(index, 0, 10 * block);
    CHECK(index.count() == 10);
}

}  // namespace stream_index_test
