// Tests the host tier: what was uploaded comes back from page-locked memory instead of files, within a budget.
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "device/random_tensors.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace host_tier_test {

using namespace safemap;
using namespace safemap::literals;
using safemap::device::Cache;

namespace {

constexpr std::uint64_t size_of_one = 300'000;

/// A cache with a host tier, over a device that the host cannot write to, and bundles of one tensor each.
struct Tier {
    Tier(std::uint64_t device_bytes, std::uint64_t host_bytes, std::size_t count, unsigned readers = 2) {
        const DeviceBudgetOptions budget{
            .device_bytes = device_bytes, .staging_bytes = 2 * size_of_staging, .host_bytes = host_bytes};
        shared = Cache::make(fake, budget);
        cache = std::make_unique<CacheFixture>(shared, UploadOptions{.readers = readers});
        for (std::size_t i = 0; i < count; ++i) {
            stored.push_back(std::make_unique<Bytes>("t" + std::to_string(i), size_of_one));
            bundles.push_back(cache->bundle(stored.back()->tensor));
            values.push_back(value_of(stored.back()->tensor));
        }
    }

    void use(std::size_t i) const {
        const Held held = cache->acquire(bundles[i]);
        CHECK(read_back(*fake, held[0]) == values[i]);
    }
    void use_all() const {
        for (std::size_t i = 0; i < bundles.size(); ++i) use(i);
    }
    /// Returns the bytes that came from the tier in a run, and not from files.
    template <class Run> std::uint64_t saved(Run&& run) const {
        const std::uint64_t before = cache->stats().bytes_from_host;
        run();
        return cache->stats().bytes_from_host - before;
    }

    static constexpr std::uint64_t size_of_staging = 64_KiB;
    const std::shared_ptr<FakeDevice> fake = std::make_shared<FakeDevice>();
    std::vector<std::unique_ptr<Bytes>> stored = {};
    std::vector<std::vector<std::byte>> values = {};
    std::shared_ptr<Cache> shared = {};
    std::unique_ptr<CacheFixture> cache = {};
    std::vector<BundlePtr> bundles = {};
};

}  // namespace

TEST_CASE("what was evicted comes back from the host tier, and no file is read") {
    const Tier tier(size_of_one, 3 * size_of_one, 3);
    tier.use_all();
    for (const auto& one : tier.stored) one->counted.fail_after(0);
    CHECK(tier.saved([&] { tier.use_all(); }) == 3 * size_of_one);
    CHECK(tier.shared->stats().host_bytes == 3 * size_of_one);
    CHECK(tier.cache->stats().uploaded_bytes == 6 * size_of_one);
    CHECK(tier.fake->was_used_well());
}

TEST_CASE("a tier without room for all keeps what is used again") {
    constexpr std::size_t often = 4;
    constexpr std::size_t rounds = 40;
    const Tier tier(size_of_one, 6 * size_of_one + 1000, 14);
    for (std::size_t round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < often; ++i) tier.use(i);
        tier.use(often + round % 10);  // a cycle that does not fit
    }
    CHECK(tier.cache->stats().bytes_from_host >= (rounds - 5) * often * size_of_one);
    CHECK(tier.shared->stats().peak_host_bytes == 6 * size_of_one);
    CHECK(*tier.fake->live_staging <= 6 * size_of_one + 2 * Tier::size_of_staging);
    CHECK(tier.fake->was_used_well());
}

TEST_CASE("small groups and those that are larger than the tier go through slabs") {
    const Tier tier(4'000'000, size_of_one - 1, 1);
    const Bytes small("small", 1000);
    const BundlePtr bundle = tier.cache->bundle(small.tensor);
    for (int round = 0; round < 2; ++round) {
        static_cast<void>(tier.cache->acquire(bundle));
        tier.use(0);
        static_cast<void>(tier.cache->sleep());
        tier.cache->wake();
    }
    CHECK(tier.shared->stats().peak_host_bytes == 0);
    CHECK(tier.cache->stats().bytes_from_host == 0);
}

TEST_CASE("a wake reads no file") {
    const Tier tier(4 * size_of_one, 4 * size_of_one, 4);
    tier.use_all();
    CHECK(tier.cache->sleep() == 0);
    for (const auto& one : tier.stored) one->counted.fail_after(0);
    CHECK(tier.saved([&] {
        tier.cache->wake();
        tier.use_all();
    }) == 4 * size_of_one);
    CHECK(tier.fake->was_used_well());
}

TEST_CASE("a pass of an order reads what neither the device nor the host tier keeps") {
    constexpr std::uint64_t layers = 12;
    const Tier tier(5 * size_of_one, 4 * size_of_one, layers);  // three stay, and two slots
    const auto read = [&] {
        std::uint64_t sum = 0;
        for (const auto& one : tier.stored) sum += one->counted.bytes();
        return sum;
    };
    tier.cache->follow(tier.bundles, true);
    for (int pass = 0; pass < 3; ++pass) tier.use_all();
    const std::uint64_t before = read();
    tier.use_all();
    // The upload ahead may have begun one more.
    const std::uint64_t pass = read() - before;
    CHECK(pass >= (layers - 3 - 4 - 1) * size_of_one);
    CHECK(pass <= (layers - 3 - 4 + 1) * size_of_one);
    CHECK(tier.shared->stats().peak_host_bytes == 4 * size_of_one);
    tier.cache->follow({}, true);
    CHECK(tier.fake->was_used_well());
}

TEST_CASE("tensors of every kind are in a picture as they are on the device") {
    const Counted counted(7, 4'000'000);
    const LazyTensor matrix = counted.tensor("matrix", Dtype::f32, {1000, 1000});
    const std::vector<LazyTensor> tensors = {
        matrix.slice({{.start = 3, .stop = 500}}).renamed("rows"),
        LazyTensor("transposed", matrix.stored(), StridedView{{900, 1000}, {1, 1000}, 0}),
        matrix.slice({{.start = 0, .stop = 700, .step = 3}, {.start = 900, .stop = 2, .step = -1}}).renamed("odd"),
        matrix.cast(Dtype::f16).renamed("cast"),
    };
    const Tier tier(20'000'000, 20'000'000, 0);
    const BundlePtr bundle = tier.cache->bundle(tensors);
    for (int round = 0; round < 2; ++round) {
        {
            const Held held = tier.cache->acquire(bundle);
            for (const LazyTensor& tensor : tensors)
                CHECK(read_back(*tier.fake, *held.find(tensor.name())) == value_of(tensor));
        }
        tier.cache->evict(bundle);
    }
    CHECK(tier.fake->was_used_well());
    const UploadStats stats = tier.cache->stats();
    CHECK(stats.bytes_from_host == stats.uploaded_bytes / 2);
}

TEST_CASE("a read that fails leaves no picture") {
    const Tier tier(size_of_one, 2 * size_of_one, 2);
    tier.stored[0]->counted.fail_after(2);
    CHECK_FAULT(tier.cache->acquire(tier.bundles[0]), Errc::io_error);
    CHECK(tier.saved([&] {
        tier.use(0);
        tier.use(1);
    }) == 0);
    CHECK(tier.saved([&] { tier.use(0); }) == size_of_one);
    CHECK(tier.fake->was_used_well());
}

TEST_CASE("where no memory can be locked, uploads go through slabs") {
    const Tier tier(size_of_one, 2 * size_of_one, 2);
    tier.use(0);
    tier.fake->fail_staging = 0;
    tier.use(1);
    CHECK(tier.saved([&] { tier.use(0); }) == size_of_one);
    CHECK(tier.saved([&] { tier.use(1); }) == 0);
    CHECK(tier.shared->stats().host_bytes == size_of_one);
}

TEST_CASE("the end of an uploader frees its part of the host tier, though bundles live") {
    Tier tier(size_of_one, 4 * size_of_one, 2);
    tier.use_all();
    CHECK(tier.shared->stats().host_bytes == 2 * size_of_one);
    tier.cache->stop();
    CHECK(tier.shared->stats().host_bytes == 0);
    CHECK(*tier.fake->live_staging == tier.shared->stats().peak_staging_bytes);
}

TEST_CASE("what a bundle had in the host tier is for others when it ends") {
    Tier tier(size_of_one, size_of_one, 2);
    tier.use(0);
    tier.bundles[0].reset();
    // A reader may hold it for a moment.
    CHECK(soon([&] {
        tier.cache->evict(tier.bundles[1]);
        return tier.saved([&] { tier.use(1); }) == size_of_one;
    }));
    CHECK(tier.shared->stats().peak_host_bytes == size_of_one);
}

TEST_CASE("memory counts until it is free, though another upload comes meanwhile") {
    constexpr std::uint64_t most = 2 * size_of_one;
    Tier tier(4 * most, most, 2);
    const Bytes large("large", most);
    BundlePtr first = tier.cache->bundle(large.tensor);
    static_cast<void>(tier.cache->acquire(first));
    std::atomic<bool> was_freed = false;
    *tier.fake->on_free_staging = [&](std::uint64_t size) {
        if (size != most || was_freed.exchange(true)) return;
        std::thread([&] { tier.use(1); }).join();
        CHECK(*tier.fake->live_staging <= most + 2 * Tier::size_of_staging);
    };
    first.reset();
    CHECK(soon([&] { return tier.cache->stats().resident_bytes == 0; }));  // a reader may hold it for a moment
    tier.use(0);
    CHECK(was_freed);
    CHECK(tier.shared->stats().peak_host_bytes == most);
    CHECK(tier.fake->was_used_well());
}

}  // namespace host_tier_test
