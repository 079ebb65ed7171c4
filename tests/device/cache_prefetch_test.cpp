// Tests prefetches, the cancelling of prefetches, and evict.

#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace cache_prefetch_test {

using namespace safemap;
using device::Cache;

namespace {

bool is_ready(const std::future<void>& future) {
    return future.wait_for(std::chrono::milliseconds(20)) == std::future_status::ready;
}

/// Layers of 100 bytes, and a bundle of each.
struct Layers {
    std::vector<Bytes> stored = {};
    std::vector<BundlePtr> bundles = {};

    Layers(const CacheFixture& cache, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            stored.emplace_back("layer" + std::to_string(i), 100);
            bundles.push_back(cache.bundle(stored.back().tensor));
        }
    }
};

/// A cache in which a demand waits for 400,000 bytes of the device until end().
class DemandInProgress {
public:
    explicit DemandInProgress(std::uint64_t budget)
        : cache(fake, {.device_budget = budget, .staging_bytes = 1_MiB, .readers = 1}) {
        fake->on_allocation = [this](std::uint64_t size) {
            ++allocations;
            if (size == 400'000) in_time_ = soon([this] { return go_on_.load(); });
        };
        demand_ = std::jthread([this] { cache.acquire(first_.tensor); });
        REQUIRE(soon([this] { return allocations == 1; }));
    }
    void end() {
        go_on_ = true;
        demand_.join();
        CHECK(in_time_);
    }

private:
    std::atomic<bool> go_on_ = false;
    std::atomic<bool> in_time_ = false;
    const Bytes first_{"first", 400'000};

public:
    std::atomic<int> allocations = 0;
    const std::shared_ptr<FakeDevice> fake = std::make_shared<FakeDevice>();
    const CacheFixture cache;

private:
    std::jthread demand_;  // ends before the rest
};

}  // namespace

TEST_CASE("prefetch uploads what fits, while nobody waits for it") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 50);
    const Bytes c("c", 40);
    const std::vector<LazyTensor> all = {a.tensor, b.tensor, c.tensor};
    cache.prefetch(all);
    CHECK(soon([&] { return cache.stats().resident_bytes == 100; }));
    CHECK(b.counted.reads() == 0);
    cache.acquire(a.tensor);
    cache.acquire(c.tensor);
    CHECK(a.counted.bytes() == 60);
    CHECK(c.counted.bytes() == 40);
    CHECK(cache.stats().stalled.count() == 0);
    CHECK(cache.stats().evictions == 0);

    // A repeated prefetch keeps what is resident.
    cache.prefetch(all);
    CHECK(cache.stats().evictions == 0);
    // Another prefetch does not replace it before it was acquired.
    cache.prefetch(b.tensor);
    CHECK(cache.stats().evictions == 0);
    cache.acquire(a.tensor);
    cache.acquire(c.tensor);
    cache.prefetch(b.tensor);
    CHECK(soon([&] { return b.counted.bytes() == 50; }));
    CHECK(cache.stats().evictions > 0);
    CHECK(cache.stats().peak_device_bytes <= 100);
}

TEST_CASE("prefetches ahead of a loop evict nothing that the loop comes to before") {
    constexpr std::size_t count = 16;
    for (const std::size_t ahead : {1U, 2U, 5U}) {
        CAPTURE(ahead);
        const CacheFixture cache(Device::open("host"), 800, 1);
        const Layers layers(cache, count);
        const std::vector<BundlePtr>& bundles = layers.bundles;
        // It has arrived, so that it can be evicted.
        const auto prefetch = [&](std::size_t i) {
            cache.prefetch(bundles[i]);
            const auto& word = bundles[i]->groups.front()->word;
            REQUIRE(soon([&] { return word.state() != device::Word::State::arriving; }));
        };
        const auto pass = [&] {
            for (std::size_t i = 0; i < ahead; ++i) prefetch(i);
            for (std::size_t i = 0; i < count; ++i) {
                const Held held = cache.acquire(bundles[i]);
                if (i + ahead < count) prefetch(i + ahead);
            }
        };
        pass();
        CHECK(cache.stats().uploaded_bytes == 1'600);
        for (int i = 0; i < 20; ++i) {
            const auto before = cache.stats();
            pass();
            if (i == 0) continue;  // after this pass, the same ones stay
            // All layers stay but those ahead, the one in use, and the one that it replaces.
            CHECK(cache.stats().uploaded_bytes - before.uploaded_bytes <= 100 * (count - 8 + ahead + 1));
        }
    }
}

TEST_CASE("a plan of which all is there needs to be told of no lease, until something of it goes") {
    const CacheFixture cache(Device::open("host"), 800, 1);
    const Layers layers(cache, 8);
    const std::vector<BundlePtr>& bundles = layers.bundles;
    const auto are_there = [&] { return cache.stats().resident_bytes == 800; };
    cache.follow(bundles, true);
    CHECK(soon(are_there));
    CHECK_FALSE(cache.view()->follows);
    cache.evict(bundles[3]);
    CHECK(cache.view()->follows);
    const Held held = cache.acquire(bundles[0]);
    cache.view()->cache->reached(*bundles[0]);
    CHECK(soon(are_there));
    CHECK_FALSE(cache.view()->follows);
    cache.follow({}, true);
    CHECK_FALSE(cache.view()->follows);
}

TEST_CASE("bundles that were prefetched by mistake make way for later prefetches in the end") {
    const CacheFixture cache(Device::open("host"), 400, 1);
    std::vector<Bytes> guesses;
    std::vector<LazyTensor> all;
    for (int i = 0; i < 4; ++i) {
        guesses.emplace_back("guess" + std::to_string(i), 100);
        all.push_back(guesses.back().tensor);
    }
    cache.prefetch(all);
    REQUIRE(soon([&] { return cache.stats().resident_bytes == 400; }));
    const Bytes next("next", 100);
    for (int i = 0; i < 4; ++i) cache.prefetch(next.tensor);
    CHECK(cache.stats().evictions == 0);
    cache.prefetch(next.tensor);
    CHECK(soon([&] { return next.counted.bytes() == 100; }));
    CHECK(cache.stats().evictions == 1);
}

TEST_CASE("prefetch does not evict leased tensors") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 50);
    const Held held = cache.acquire(a.tensor);
    cache.prefetch(b.tensor);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(b.counted.reads() == 0);
    CHECK(cache.stats().resident_bytes == 60);
}

TEST_CASE("a prefetched bundle without a handle is gone when it has arrived") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 30);
    const BundlePtr handle = cache.bundle(b.tensor);
    cache.prefetch(cache.bundle(a.tensor));
    cache.prefetch(handle);
    CHECK(soon([&] { return cache.stats().uploaded_bytes == 90 && cache.stats().resident_bytes == 30; }));
    CHECK(Cache::try_lease(*handle));
    handle->view->cache->release(*handle, {});
}

TEST_CASE("a fault of a prefetch is thrown by the next acquire, once") {
    const CacheFixture cache(Device::open("host"), 100);
    const Bytes bad("bad", 10);
    const Bytes good("good", 10);
    bad.counted.fail_after(0);
    const std::vector<LazyTensor> both = {bad.tensor, good.tensor};
    cache.prefetch(both);
    CHECK(soon([&] { return cache.stats().resident_bytes == 10 && bad.counted.reads() == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    cache.prefetch(both);
    CHECK_OK(cache.acquire(good.tensor));
    check_error(error_of([&] { cache.acquire(bad.tensor); }), {Errc::io_error}, {}, {.tensor = "bad"});
    CHECK(bad.counted.reads() == 1);
    CHECK_OK(cache.acquire(bad.tensor));
    CHECK(bad.counted.reads() == 2);
}

TEST_CASE("acquire has priority over prefetches, and cancels prefetches that need its memory") {
    const CacheFixture cache(Device::open("host"), 1000, 1);
    std::vector<Bytes> layers;
    std::vector<LazyTensor> all;
    for (int i = 0; i < 10; ++i) {
        layers.emplace_back("layer" + std::to_string(i), 100);
        all.push_back(layers.back().tensor);
    }
    const Bytes urgent("urgent", 900);
    layers[0].counted.hold();
    cache.prefetch(all);
    REQUIRE(soon([&] { return layers[0].counted.reads() == 1; }));
    // The reader waits in the first layer, so the thread that acquires reads, and the other layers make room.
    cache.acquire(urgent.tensor);
    layers[0].counted.go_on();
    for (std::size_t i = 1; i < layers.size(); ++i) CHECK(layers[i].counted.reads() == 0);
    CHECK(cache.stats().peak_device_bytes <= 1000);
    // Cancelled prefetches can be repeated.
    for (const Bytes& layer : layers) CHECK_OK(cache.acquire(layer.tensor));
}

TEST_CASE("a prefetch gets no memory from the device while a demand gets its own") {
    constexpr std::uint64_t wanted = 400'000;
    const auto fake = std::make_shared<FakeDevice>();
    std::atomic<int> begun = 0;
    std::atomic<bool> demand_allocates = false;
    std::atomic<int> in_between = 0;
    fake->on_allocation = [&](std::uint64_t size) {
        ++begun;
        if (size == wanted) {
            demand_allocates = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            demand_allocates = false;
        } else {
            if (demand_allocates) ++in_between;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    };
    const CacheFixture cache(fake, {.device_budget = 100'000'000, .staging_bytes = 1_MiB, .readers = 1});
    std::vector<Bytes> tensors;
    std::vector<LazyTensor> all;
    for (int i = 0; i < 60; ++i) {
        tensors.emplace_back("t" + std::to_string(i), 300'000);  // in no block of small ones
        all.push_back(tensors.back().tensor);
    }
    const Bytes other("other", wanted);
    std::jthread prefetches([&] { cache.prefetch(all); });
    REQUIRE(soon([&] { return begun > 2; }));
    const Held held = cache.acquire(other.tensor);
    prefetches.join();
    CHECK(soon([&] { return begun == 61; }));
    CHECK(in_between <= 1);  // one may have had its turn before
    CHECK(read_back(*fake, held[0]) == value_of(other.tensor));
}

TEST_CASE("a prefetch that somebody waits for meanwhile gets its memory as a demand does") {
    DemandInProgress demand(100'000'000);
    const Bytes second("second", 300'000);
    const BundlePtr wanted = demand.cache.bundle(second.tensor);
    std::jthread prefetches([&] { demand.cache.prefetch(wanted); });
    REQUIRE(soon([&] { return wanted->groups.front()->word.state() == device::Word::State::arriving; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(demand.allocations == 1);
    const Held held = demand.cache.acquire(wanted);
    CHECK(demand.allocations == 2);
    demand.end();
    CHECK(read_back(*demand.fake, held[0]) == value_of(second.tensor));
}

TEST_CASE("a prefetch that is cancelled while it waits for its turn gets no memory, and leaves its room to others") {
    DemandInProgress demand(1'000'000);
    const Bytes ahead("ahead", 300'000);
    const Bytes urgent("urgent", 500'000);
    const BundlePtr prefetched = demand.cache.bundle(ahead.tensor);
    std::jthread prefetches([&] { demand.cache.prefetch(prefetched); });
    REQUIRE(soon([&] { return prefetched->groups.front()->word.state() == device::Word::State::arriving; }));
    const Held held = demand.cache.acquire(urgent.tensor);
    prefetches.join();
    CHECK(demand.allocations == 2);
    demand.end();
    CHECK(demand.fake->peak <= 1'000'000);
    CHECK(read_back(*demand.fake, held[0]) == value_of(urgent.tensor));
}

TEST_CASE("a cancelled prefetch gives its memory back when its job is done, and acquire waits for just that") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100, 2);
    const Bytes ahead("ahead", 70);
    const Bytes other("other", 30);
    const Bytes urgent("urgent", 95);
    const BundlePtr prefetched = cache.bundle(ahead.tensor);
    ahead.counted.hold();
    cache.prefetch(prefetched);
    REQUIRE(soon([&] { return ahead.counted.reads() == 1; }));
    auto arrives = std::async(std::launch::async, [&] {
        const Held held = cache.acquire(urgent.tensor);
        CHECK(read_back(*fake, held[0]) == value_of(urgent.tensor));
    });
    CHECK_FALSE(is_ready(arrives));
    CHECK(fake->allocated == 70);
    CHECK_FALSE(Cache::try_lease(*prefetched));
    ahead.counted.go_on();
    CHECK_OK(arrives.get());
    CHECK(fake->peak <= 100);
    CHECK(cache.stats().resident_bytes == 95);
    // The cancelled bundle comes again, with the values that it should have.
    const Held held = cache.acquire(prefetched);
    CHECK(read_back(*fake, held[0]) == value_of(ahead.tensor));
    CHECK(ahead.counted.reads() >= 2);
    CHECK_OK(cache.acquire(other.tensor));
}

TEST_CASE("an acquire that joins a prefetch protects it, and reads the rest of it") {
    const CacheFixture cache(Device::open("host"), 40_MiB, 1);
    const Bytes blocker("blocker", 1_MiB);
    const Bytes ahead("ahead", 20_MiB);
    const Bytes urgent("urgent", 25_MiB);
    blocker.counted.hold();
    cache.prefetch({blocker.tensor, ahead.tensor});
    REQUIRE(soon([&] { return blocker.counted.reads() == 1; }));
    const Held held = cache.acquire(ahead.tensor);  // read by this thread: the reader is held
    CHECK(ahead.counted.bytes() == 20_MiB);
    CHECK_FAULT(cache.acquire(urgent.tensor), Errc::budget_exceeded);
    blocker.counted.go_on();
}

TEST_CASE("a prefetch arrives, even if an acquire that joined it was refused before it had memory") {
    const CacheFixture cache(Device::open("host"), 100, 1);
    const Bytes leaving("leaving", 90);
    const Bytes urgent("urgent", 20);
    const Bytes ahead("ahead", 80);
    const Bytes large("large", 100);
    const BundlePtr prefetched = cache.bundle(ahead.tensor);
    const BundlePtr refused = cache.bundle({ahead.tensor, large.tensor});
    const BundlePtr wanted = cache.bundle(urgent.tensor);
    leaving.counted.hold();
    cache.prefetch(leaving.tensor);
    REQUIRE(soon([&] { return leaving.counted.reads() == 1; }));
    auto acquires = std::async(std::launch::async, [&] { cache.acquire(wanted); });
    REQUIRE(soon([&] { return wanted->groups.front()->word.state() == device::Word::State::arriving; }));
    CHECK_FALSE(is_ready(acquires));
    auto prefetches = std::async(std::launch::async, [&] { cache.prefetch(prefetched); });
    static_cast<void>(is_ready(prefetches));
    CHECK_FAULT(cache.acquire(refused), Errc::budget_exceeded);
    leaving.counted.go_on();
    CHECK_OK(acquires.get());
    CHECK_OK(prefetches.get());
    CHECK(soon([&] { return ahead.counted.reads() == 1; }));
}

TEST_CASE("the memory of a cancelled prefetch is not freed while its copies are queued, even if no job is running") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 40_MiB, 1);
    const Bytes ahead("ahead", 20_MiB);    // three jobs
    const Bytes busy("busy", 10_MiB);      // two jobs
    const Bytes urgent("urgent", 25_MiB);  // needs the memory of `ahead`
    fake->pause(true);
    ahead.counted.hold();
    cache.prefetch(ahead.tensor);
    REQUIRE(soon([&] { return ahead.counted.reads() == 1; }));
    busy.counted.hold();
    auto first = std::async(std::launch::async, [&] { cache.acquire(busy.tensor); });
    REQUIRE(soon([&] { return busy.counted.reads() == 1; }));
    // After its first job of `ahead`, the reader turns to `busy`.
    ahead.counted.go_on();
    REQUIRE(soon([&] { return busy.counted.reads() == 2; }));
    REQUIRE(fake->copies == 1);

    auto second = std::async(std::launch::async, [&] { cache.acquire(urgent.tensor); });
    CHECK_FALSE(is_ready(second));
    fake->pause(false);
    busy.counted.go_on();
    CHECK_OK(first.get());
    CHECK_OK(second.get());
    CHECK(fake->was_used_well());
    CHECK(fake->peak <= 40_MiB);
}

TEST_CASE("evict drops resident tensors that are not leased, and gives their memory back") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100);
    const Bytes a("a", 10);
    const Bytes b("b", 20);
    const Bytes never("never", 20);
    const Held held = cache.acquire(a.tensor);
    cache.acquire(b.tensor);
    cache.evict({a.tensor, b.tensor, b.tensor.renamed("tied"), never.tensor});
    CHECK(cache.stats().resident_bytes == 10);
    CHECK(cache.stats().evictions == 1);
    CHECK(fake->allocated == 10);
    cache.acquire(b.tensor);
    CHECK(b.counted.bytes() == 40);
}

TEST_CASE("a bundle without a handle is gone when its last lease ends; its memory is kept until evict") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100);
    const Bytes whole("whole", 100);
    const auto part = whole.tensor.slice({{.start = 10, .stop = 20}});
    for (int pass = 0; pass < 3; ++pass) {
        Held first = cache.acquire(cache.bundle(part));
        const Held second = cache.acquire(cache.bundle(part.renamed("again")));
        CHECK(first[0].memory() == second[0].memory());
        first.reset();
        CHECK(cache.stats().resident_bytes == 10);
        CHECK(whole.counted.bytes() == 10 * static_cast<std::uint64_t>(pass + 1));
    }
    CHECK(cache.stats().resident_bytes == 0);
    CHECK(cache.stats().evictions == 0);
    CHECK(fake->allocations == 1);
    CHECK(fake->allocated == 10);
    cache.evict(part);
    CHECK(fake->allocated == 0);
    CHECK_OK(cache.acquire(whole.tensor));
    CHECK(cache.stats().resident_bytes == 100);  // this one is kept
    cache.evict(whole.tensor);
    CHECK(cache.stats().evictions == 1);
    CHECK(fake->allocated == 0);
}

}  // namespace cache_prefetch_test
