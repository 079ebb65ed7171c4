// Tests how a cache uses device memory: reuse, blocks that small groups share, concurrent use, and the number of copies
// and reads.

#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/device.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace cache_memory_test {

using namespace safemap;
using device::Cache;

TEST_CASE("a cyclic pass over equal bundles allocates nothing when the budget was full once, and nearly all stay") {
    const auto fake = std::make_shared<FakeDevice>();
    constexpr std::uint64_t size = 70'000;  // too large to share a block
    const CacheFixture cache(fake, {.device_budget = 20 * size, .staging_bytes = 100'000, .readers = 2});
    std::vector<Bytes> layers;
    std::vector<BundlePtr> bundles;
    for (int i = 0; i < 40; ++i) {
        layers.emplace_back("layer" + std::to_string(i), size);
        bundles.push_back(cache.bundle(layers.back().tensor));
    }
    for (int pass = 0; pass < 3; ++pass)
        for (std::size_t i = 0; i < bundles.size(); ++i) {
            const Held held = cache.acquire(bundles[i]);
            CHECK(read_back(*fake, held[0]) == value_of(layers[i].tensor));
        }
    CHECK(fake->allocations == 20);
    CHECK(fake->peak == 20 * size);
    // 19 layers stay, and the others have the memory of one in turn: 40, 21 and 21 uploads, and one until that settles.
    CHECK(cache.stats().evictions <= 63);
    CHECK(cache.stats().uploaded_bytes <= 83 * size);
    for (const BundlePtr& bundle : bundles) cache.evict(bundle);
    CHECK(fake->allocated == 0);
}

TEST_CASE("memory is used again for bundles of the same size, and freed for others if there is no room beside it") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 1000);
    const Bytes first("first", 600);
    const Bytes equal("equal", 600);
    const Bytes smaller("smaller", 599);
    cache.acquire(cache.bundle(first.tensor));
    {
        const Held held = cache.acquire(cache.bundle(equal.tensor));
        CHECK(held[0].memory()->size() == 600);
        CHECK(read_back(*fake, held[0]) == value_of(equal.tensor));
    }
    CHECK(fake->allocations == 1);
    const Held held = cache.acquire(cache.bundle(smaller.tensor));
    CHECK(held[0].memory()->size() == 599);
    CHECK(fake->allocations == 2);
    CHECK(fake->peak <= 1000);
}

TEST_CASE("two leases fill the budget, whatever memory was used before") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100);
    const Bytes before("before", 56);
    const Bytes a("a", 50);
    const Bytes b("b", 50);
    cache.acquire(cache.bundle(before.tensor));
    const Held one = cache.acquire(cache.bundle(a.tensor));
    CHECK_OK(cache.acquire(cache.bundle(b.tensor)));
    CHECK(fake->peak <= 100);
}

TEST_CASE("an acquire waits for a small prefetch in a block that it needs") {
    const CacheFixture cache(Device::open("host"), 1_MiB, 1);
    const Bytes small("small", 1000);
    const Bytes all("all", 1_MiB);
    small.counted.hold();
    cache.prefetch(small.tensor);
    CHECK(soon([&] { return small.counted.reads() == 1; }));
    auto acquires = std::async(std::launch::async, [&] { cache.acquire(all.tensor); });
    CHECK(acquires.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
    small.counted.go_on();
    CHECK_OK(acquires.get());
    CHECK(all.counted.bytes() == 1_MiB);
}

TEST_CASE("small bundles share blocks, which are evicted as a whole, and after larger bundles") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 1_MiB);
    std::vector<Bytes> small;
    std::vector<BundlePtr> bundles;
    for (int i = 0; i < 100; ++i) {
        small.emplace_back("small" + std::to_string(i), 1000 + i);
        bundles.push_back(cache.bundle(small.back().tensor));
    }
    for (std::size_t i = 0; i < bundles.size(); ++i) {
        const Held held = cache.acquire(bundles[i]);
        CHECK(held[0].offset() % 256 == 0);
        CHECK(held[0].memory()->size() > held[0].nbytes());
    }
    CHECK(fake->allocations <= 8);
    CHECK(fake->allocated <= 300'000);
    CHECK(cache.stats().resident_bytes == 100 * 1000 + 99 * 100 / 2);
    for (std::size_t i = 0; i < bundles.size(); ++i) {
        const Held held = cache.acquire(bundles[i]);
        CHECK(small[i].counted.reads() == 1);
        CHECK(read_back(*fake, held[0]) == value_of(small[i].tensor));
    }
    const Bytes large("large", 500'000);
    const Bytes larger("larger", 600'000);
    const Bytes all("all", 1_MiB);
    cache.acquire(large.tensor);
    cache.acquire(larger.tensor);
    CHECK(cache.stats().evictions == 1);
    cache.acquire(all.tensor);
    CHECK(cache.stats().resident_bytes == 1_MiB);
    CHECK(cache.stats().evictions == 102);
    CHECK(fake->peak <= 1_MiB);
}

TEST_CASE("threads lease resident bundles while others evict and bring them") {
    for (const std::uint64_t budget : {std::uint64_t{20'000}, 2_MiB}) {
        CAPTURE(budget);
        const CacheFixture cache(Device::open("host"), budget, 2);
        // A fifth of the budget each, so that not all fit.
        std::vector<Bytes> stored;
        std::vector<BundlePtr> bundles;
        for (int i = 0; i < 8; ++i) {
            stored.emplace_back("t" + std::to_string(i), budget / 5);
            bundles.push_back(cache.bundle(stored.back().tensor));
        }
        std::vector<std::byte> firsts;
        for (const Bytes& one : stored) firsts.push_back(value_of(one.tensor)[0]);
        std::atomic<bool> stop = false;
        std::atomic<int> wrong = 0;
        std::atomic<int> hits = 0;
        std::atomic<int> refused = 0;
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 3; ++t)
            threads.emplace_back([&, t] {
                std::mt19937 random(t);
                while (!stop) {
                    const std::size_t i = random() % bundles.size();
                    if (!Cache::try_lease(*bundles[i])) continue;
                    const Held held(bundles[i]);
                    ++hits;
                    if (held[0].host_bytes().front() != firsts[i]) ++wrong;
                    if (random() % 4 == 0) std::this_thread::yield();
                    if (held[0].host_bytes().front() != firsts[i]) ++wrong;
                }
            });
        for (unsigned t = 0; t < 2; ++t)
            threads.emplace_back([&, t] {
                std::mt19937 random(100 + t);
                // Goes on until the threads that lease had a turn, on a busy machine, too.
                for (int step = 0; step < 1500 || (hits == 0 && step < 1'000'000); ++step) {
                    const std::size_t i = random() % bundles.size();
                    if (random() % 3 == 0) {
                        cache.evict(bundles[i]);
                    } else if (random() % 4 == 0) {
                        cache.prefetch(bundles[i]);
                    } else {
                        const auto error = error_of([&] {
                            const Held held = cache.acquire(bundles[i]);
                            if (held[0].host_bytes().front() != firsts[i]) ++wrong;
                        });
                        if (!error) continue;
                        CHECK(error->code() == Errc::budget_exceeded);
                        ++refused;
                    }
                }
                stop = true;
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(wrong.load() == 0);
        CHECK(hits.load() > 0);
        // Five threads lease at most four other bundles, and five bundles fit.
        CHECK(refused.load() == 0);
        CHECK(cache.stats().peak_device_bytes <= budget);
    }
}

TEST_CASE("a tile of a transposed tensor takes at most two copies") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100_MiB, 2);
    const Counted counted(1, 32_MiB);
    const auto square = counted.tensor("square", Dtype::bf16, {4096, 4096});
    const LazyTensor transposed("transposed", square.stored(), StridedView{{4096, 4096}, {1, 4096}, 0});
    const BundlePtr bundle = cache.bundle(transposed);
    const Held held = cache.acquire(bundle);
    const std::size_t tiles = bundle->groups.front()->on_device->plan.jobs();
    CHECK(tiles >= 16);
    CHECK(tiles <= 32);
    CHECK(fake->copies <= 2 * tiles);
    CHECK(read_back(*fake, held[0]) == value_of(transposed));
    CHECK(fake->was_used_well());
}

TEST_CASE("many small tensors of one file take few reads and few copies") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100_MiB, 2);
    constexpr std::uint64_t count = 75'000;
    constexpr std::uint64_t size = 16;
    const Counted counted(1, count * size);
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < count; ++i)
        tensors.emplace_back(std::to_string(i), stored_run(Dtype::u8, {size}, counted.source(), i * size));
    const Held held = cache.acquire(cache.bundle(tensors));
    CHECK(fake->copies <= 10);
    CHECK(counted.reads() <= 100);
    CHECK(counted.bytes() == count * size);
    std::vector<std::byte> memory(held[0].memory()->size());
    fake->copy_to_host(memory, *held[0].memory(), 0);
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < count; ++i)
        for (std::uint64_t byte = 0; byte < size; ++byte)
            wrong += memory[held[i].offset() + byte] != pattern(1, i * size + byte);
    CHECK(wrong == 0);
    CHECK(fake->was_used_well());
}

}  // namespace cache_memory_test
