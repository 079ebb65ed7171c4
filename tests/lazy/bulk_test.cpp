// Tests the buffers of worker threads, and rows of blocks.
#include "lazy/bulk.hpp"
#include "doctest_safemap.hpp"

#include <random>
#include <vector>

namespace bulk_test {

using namespace safemap;

TEST_CASE("all buffers and gatherers together take at most 32 MiB, for any number of threads") {
    for (const unsigned threads : {0U, 1U, 2U, 3U, 7U, 8U, 9U, 64U, 1024U}) {
        for (const unsigned buffers : {1U, 2U}) {
            CAPTURE(threads);
            CAPTURE(buffers);
            Workers workers(threads, buffers);
            CHECK(workers.count() >= 1);
            CHECK(workers.count() * (buffers * workers.buffer_size() + Gatherer::most_memory) <= Workers::all_memory);
            CHECK(workers.buffer_size() >= 512U << 10);
            CHECK(workers.buffer_size() % 4096 == 0);
            const auto first = workers.buffer(workers.count() - 1, 0);
            const auto last = workers.buffer(workers.count() - 1, buffers - 1);
            CHECK(first.size() == workers.buffer_size());
            CHECK(last.data() == first.data() + (buffers - 1) * first.size());
        }
    }
}

TEST_CASE("a row of blocks has every block of every item, in order") {
    std::mt19937 random(5);
    BlockRow row;
    std::vector<std::pair<std::size_t, std::uint64_t>> slow;
    for (std::size_t item = 0; item < 200; ++item) {
        const std::uint64_t blocks = random() % 4;
        row.add(blocks);
        for (std::uint64_t block = 0; block < blocks; ++block) slow.emplace_back(item, block);
    }
    REQUIRE(row.size() == slow.size());
    for (std::size_t i = 0; i < slow.size(); ++i) {
        CHECK(row.at(i).item == slow[i].first);
        CHECK(row.at(i).block == slow[i].second);
    }
    CHECK(BlockRow().size() == 0);
}

}  // namespace bulk_test
