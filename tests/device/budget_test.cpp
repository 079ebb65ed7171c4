// Several uploaders under one budget: who gets memory, from whom, and what is given back.

#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device_budget.hpp>
#include <safemap/error.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace budget_test {

using namespace safemap;
using device::Cache;

namespace {

std::shared_ptr<Cache> budget_of(std::uint64_t bytes, std::shared_ptr<Device> device = Device::open("host")) {
    return Cache::make(std::move(device), {.device_bytes = bytes});
}

/// A cache, and layers of 100 bytes that it brings.
struct Model {
    CacheFixture cache;
    std::vector<Bytes> layers;
    std::vector<BundlePtr> bundles;

    Model(const std::shared_ptr<Cache>& budget, int count, std::uint64_t cap = 0)
        : cache(budget, UploadOptions{.device_budget = cap, .readers = 1}) {
        for (int i = 0; i < count; ++i) {
            layers.emplace_back("layer" + std::to_string(i), 100);
            bundles.push_back(cache.bundle(layers.back().tensor));
        }
    }
    /// Uses each layer once. Returns the bytes that had to be uploaded.
    std::uint64_t pass() const {
        const std::uint64_t before = cache.stats().uploaded_bytes;
        for (std::size_t i = 0; i < bundles.size(); ++i) {
            const Held held = cache.acquire(bundles[i]);
            CHECK(read_back(*held.bundle().view->cache->device(), held[0]) == value_of(layers[i].tensor));
        }
        return cache.stats().uploaded_bytes - before;
    }
    std::uint64_t resident() const { return cache.stats().resident_bytes; }
};

/// Two caches that share a budget on a fake device.
template <std::uint64_t bytes> struct TwoCaches {
    const std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
    const std::shared_ptr<Cache> budget = budget_of(bytes, device);
    const CacheFixture first{budget, UploadOptions{.readers = 1}};
    const CacheFixture second{budget, UploadOptions{.readers = 1}};
};

}  // namespace

TEST_CASE("memory goes to the uploader that uses it") {
    const auto budget = budget_of(600);
    const Model first(budget, 6);
    const Model second(budget, 6);
    CHECK(first.pass() == 600);
    CHECK(first.resident() == 600);
    // As long as only the second one works, it gets more and more of it.
    for (int i = 0; i < 20; ++i) second.pass();
    CHECK(second.resident() >= 500);
    CHECK(second.pass() <= 100);
    CHECK(budget->stats().peak_device_bytes == 600);
}

TEST_CASE("models that run in turns evict no more of each other than there is too little room for") {
    const auto budget = budget_of(600);
    const Model first(budget, 4);
    const Model second(budget, 4);
    first.pass();
    second.pass();
    // Five of eight layers stay, and three have the memory of one in turn.
    for (int i = 0; i < 5; ++i) CHECK(first.pass() + second.pass() <= 400);
}

TEST_CASE("what fits stays, whosever it is") {
    const auto budget = budget_of(600);
    const Model first(budget, 5);
    const Model second(budget, 1);
    first.pass();
    second.pass();
    CHECK(first.pass() == 0);
    CHECK(second.pass() == 0);
}

TEST_CASE("an acquire gets all that is not leased, and no more") {
    const auto budget = budget_of(600);
    const Model first(budget, 6);
    const Model second(budget, 6);
    first.pass();
    second.pass();
    std::vector<Held> leases;
    for (int i = 0; i < 5; ++i) leases.push_back(second.cache.acquire(second.bundles[static_cast<std::size_t>(i)]));
    CHECK(first.resident() <= 100);
    std::optional<Held> last = first.cache.acquire(first.bundles[0]);
    const Error error = error_of([&] { second.cache.acquire(second.bundles[5]); }).value();
    CHECK(error.code() == Errc::budget_exceeded);
    CHECK(std::string(error.what())
              .find("100 bytes needed at once, 500 bytes already leased, 100 bytes leased by other "
                    "uploaders, but the budget is 600 bytes of the 600 bytes that they share") != std::string::npos);
    CHECK(first.resident() == 100);
    last.reset();
    CHECK_OK(second.cache.acquire(second.bundles[5]));
    CHECK(first.resident() == 0);
}

TEST_CASE("a refused acquire takes nothing of another uploader") {
    const auto budget = budget_of(600);
    const Model first(budget, 3);
    const CacheFixture second(budget, UploadOptions{.readers = 1});
    first.pass();
    const Held held = first.cache.acquire(first.bundles[0]);
    const Bytes large("large", 501);
    CHECK_FAULT(second.acquire(large.tensor), Errc::budget_exceeded);
    CHECK(first.resident() == 300);
    CHECK(first.cache.try_acquire(first.bundles[1]).has_value());
    CHECK(first.cache.stats().evictions == 0);
}

TEST_CASE("the limit of an uploader is not for others to pay") {
    const auto budget = budget_of(600);
    const Model first(budget, 4);
    const Model second(budget, 4, 200);
    first.pass();
    CHECK(second.pass() == 400);
    CHECK(second.cache.stats().peak_device_bytes == 200);
    CHECK(first.pass() == 0);
    const Held held = second.cache.acquire(second.bundles[0]);
    const Held other = second.cache.acquire(second.bundles[1]);
    CHECK_FAULT(second.cache.acquire(second.bundles[2]), Errc::budget_exceeded);
    CHECK(first.pass() == 0);
}

TEST_CASE("a prefetch takes nothing of another uploader") {
    const auto budget = budget_of(600);
    const Model first(budget, 6);
    const Model second(budget, 1);
    first.pass();
    second.cache.prefetch(second.bundles[0]);
    CHECK_FALSE(second.cache.try_acquire(second.bundles[0]).has_value());
    CHECK(first.resident() == 600);
}

TEST_CASE("an acquire cancels prefetches of another uploader that nobody waits for") {
    const auto budget = budget_of(600);
    const Model first(budget, 6);
    const Model second(budget, 6);
    for (const Bytes& layer : first.layers) layer.counted.hold();
    for (const BundlePtr& bundle : first.bundles) first.cache.prefetch(bundle);
    // Reads of at most two of them have begun, and are held.
    std::vector<Held> leases;
    for (int i = 0; i < 4; ++i) CHECK_OK(leases.push_back(second.cache.acquire(second.bundles[std::size_t(i)])));
    for (const Bytes& layer : first.layers) layer.counted.go_on();
    CHECK(soon([&] { return first.resident() == 200; }));
    leases.clear();
    CHECK(first.pass() == 400);
}

TEST_CASE("small tensors of another uploader, which share a block, make way") {
    const auto budget = budget_of(2_MiB);
    const CacheFixture first(budget, UploadOptions{.readers = 1});
    const CacheFixture second(budget, UploadOptions{.readers = 1});
    std::vector<Bytes> small;
    std::vector<BundlePtr> bundles;
    for (int i = 0; i < 8; ++i) small.emplace_back("s" + std::to_string(i), 10'000);
    for (const Bytes& one : small) bundles.push_back(first.bundle(one.tensor));
    for (const BundlePtr& bundle : bundles) first.acquire(bundle);
    CHECK(first.stats().resident_bytes == 80'000);
    const Bytes large("large", 2_MiB);
    CHECK_OK(second.acquire(large.tensor));
    CHECK(first.stats().resident_bytes == 0);
    // While they arrive, too.
    second.evict(large.tensor);
    first.prefetch(bundles);
    CHECK_OK(second.acquire(large.tensor));
    CHECK(budget->stats().peak_device_bytes <= 2_MiB);
}

TEST_CASE_FIXTURE(TwoCaches<2_MiB>, "after a refused acquire, small tensors go into the same block as before") {
    const Bytes small[] = {{"a", 1000}, {"b", 1000}, {"c", 1000}};
    const Held a = first.acquire(small[0].tensor);
    const Bytes large("large", 2_MiB);
    CHECK_FAULT(second.acquire(large.tensor), Errc::budget_exceeded);
    const Held b = first.acquire(small[1].tensor);
    CHECK_FAULT(first.acquire(large.tensor), Errc::budget_exceeded);
    const Held c = first.acquire(small[2].tensor);
    CHECK(device->allocations == 1);
}

TEST_CASE("blocks that go do not make new ones smaller than what was claimed") {
    // Four blocks' worth of small tensors, and a lease of all the rest. Three small tensors claim one block of as many
    // bytes as the blocks have that make way for it.
    const CacheFixture cache(Device::open("host"), 2_MiB);
    std::vector<Bytes> small;
    for (int i = 0; i < 4; ++i) small.emplace_back("s" + std::to_string(i), 20'480);
    for (const Bytes& one : small) cache.acquire(one.tensor);
    const Bytes rest("rest", 2_MiB - 81'920);
    const Held held = cache.acquire(rest.tensor);
    std::vector<Bytes> next;
    std::vector<safemap::LazyTensor> all;
    std::vector<BundlePtr> bundles;  // they own the tensors, each in a bundle of its own
    for (int i = 0; i < 3; ++i) {
        next.emplace_back("n" + std::to_string(i), 22'528);
        all.push_back(next.back().tensor);
        bundles.push_back(cache.bundle(next.back().tensor));
    }
    const Held three = cache.acquire(cache.bundle(all));
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(read_back(*three.bundle().view->cache->device(), three[i]) == value_of(all[i]));
    CHECK(cache.stats().peak_device_bytes <= 2_MiB);
}

TEST_CASE_FIXTURE(TwoCaches<2_MiB>, "an acquire of another uploader keeps the block of small tensors open") {
    const Bytes small[] = {{"a", 1000}, {"b", 1000}};
    const Held a = first.acquire(small[0].tensor);
    const Bytes large[] = {{"x", 1_MiB}, {"y", 1_MiB - 4096}, {"z", 1_MiB}};
    for (const Bytes& one : large) CHECK_OK(second.acquire(one.tensor));
    const std::uint64_t before = device->allocations;
    const Held b = first.acquire(small[1].tensor);
    CHECK(device->allocations == before);
}

TEST_CASE_FIXTURE(TwoCaches<1000>, "memory that another uploader keeps is freed") {
    const Bytes a("a", 600);
    { const Held held = first.acquire(first.bundle(a.tensor)); }  // nobody has the bundle any more
    CHECK(first.stats().resident_bytes == 0);
    CHECK(device->allocated == 600);
    const Bytes b("b", 500);
    CHECK_OK(second.acquire(b.tensor));
    CHECK(device->allocated == 500);
    CHECK(device->peak <= 1000);
}

TEST_CASE_FIXTURE(TwoCaches<1000>, "a device that is full gets back what another uploader keeps") {
    const Bytes a("a", 300);
    { const Held held = first.acquire(first.bundle(a.tensor)); }
    device->fail_allocation = 0;
    const Bytes b("b", 500);
    CHECK_OK(second.acquire(b.tensor));
    CHECK(device->allocated == 500);
}

TEST_CASE("an uploader that ends gives its memory to the others, but for its leases") {
    const auto budget = budget_of(600);
    const Model second(budget, 6);
    std::optional<Held> held;
    {
        const Model first(budget, 6);
        first.pass();
        held = first.cache.acquire(first.bundles[0]);
    }
    CHECK(budget->stats().device_bytes == 100);
    std::vector<Held> leases;
    for (std::size_t i = 0; i < 5; ++i) CHECK_OK(leases.push_back(second.cache.acquire(second.bundles[i])));
    CHECK_FAULT(second.cache.acquire(second.bundles[5]), Errc::budget_exceeded);
    held.reset();
    CHECK(budget->stats().device_bytes == 500);
    CHECK_OK(second.cache.acquire(second.bundles[5]));
}

TEST_CASE("an uploader that sleeps leaves its memory to the others") {
    const auto budget = budget_of(600);
    const Model first(budget, 6);
    const Model second(budget, 6);
    first.pass();
    CHECK(first.cache.sleep() == 0);
    CHECK(second.pass() == 600);
    CHECK(second.pass() == 0);
    first.cache.wake();  // nothing fits
    CHECK(first.resident() == 0);
    CHECK(second.pass() == 0);
}

TEST_CASE("a plan keeps what its uploader may have, and a neighbour has the rest") {
    const auto budget = budget_of(800);
    const Model first(budget, 8, 500);
    const Model second(budget, 3);
    first.cache.follow(first.bundles, true);
    first.pass();
    second.pass();
    CHECK(second.resident() == 300);
    for (int i = 0; i < 3; ++i) first.pass();
    CHECK(second.pass() == 0);
    CHECK(first.resident() <= 500);
    CHECK(budget->stats().peak_device_bytes <= 800);
}

TEST_CASE("what a plan keeps goes last, but it goes for a lease of a neighbour") {
    const auto budget = budget_of(800);
    const Model first(budget, 8);
    const Model second(budget, 3);
    first.cache.follow(first.bundles, true);
    first.pass();
    CHECK(soon([&] { return first.resident() == 800; }));
    std::vector<Held> leases;
    for (const BundlePtr& bundle : second.bundles) leases.push_back(second.cache.acquire(bundle));
    CHECK(second.resident() == 300);
    first.pass();
    leases.clear();
    // It comes back with the next lease of the plan.
    first.pass();
    CHECK(soon([&] { return first.pass() == 0; }));
}

TEST_CASE("experts that are used more stay, and a scan does not drive them out") {
    constexpr int count = 64;
    const Model experts(budget_of(16 * 100), count);
    std::vector<double> weights;
    for (int i = 0; i < count; ++i) weights.push_back(1.0 / (1 + (i * 37) % count));
    std::mt19937 random(7);
    std::discrete_distribution<std::size_t> pick(weights.begin(), weights.end());
    const auto burst = [&] {
        const std::uint64_t before = experts.cache.stats().uploaded_bytes;
        for (int i = 0; i < 1'000; ++i) experts.cache.acquire(experts.bundles[pick(random)]);
        return (experts.cache.stats().uploaded_bytes - before) / 100;
    };
    for (int i = 0; i < 3; ++i) burst();
    CHECK(burst() <= 350);  // the most frequent 16 have 71 % of the uses
    experts.pass();
    CHECK(burst() <= 370);
}

TEST_CASE("uploaders of a budget share its staging") {
    const auto device = std::make_shared<FakeDevice>();
    const DeviceBudget budget(device, {.device_bytes = 100'000, .staging_bytes = 8'192});
    Uploader first(budget, no_tensors(), {.readers = 2});
    Uploader second(budget, no_tensors(), {.readers = 2});
    const Bytes a("a", 40'000);
    const Bytes b("b", 40'000);
    const Bundle one = first.bundle(std::vector{a.tensor});
    const Bundle two = second.bundle(std::vector{b.tensor});
    const Lease left = first.acquire(one);
    const Lease right = second.acquire(two);
    CHECK(read_back(*device, left.tensors()[0]) == value_of(a.tensor));
    CHECK(read_back(*device, right.tensors()[0]) == value_of(b.tensor));
    CHECK(device->staging <= 8'192);
    const DeviceBudgetStats stats = budget.stats();
    CHECK(stats.device_bytes == 80'000);
    CHECK(stats.peak_device_bytes == 80'000);
    CHECK(stats.peak_staging_bytes == device->staging);
    CHECK(first.stats().peak_staging_bytes == stats.peak_staging_bytes);
}

TEST_CASE("memory that a neighbour lends is not filled") {
    const auto host = Device::open("host");
    const DeviceBudget budget(host, {.device_bytes = 10'000});
    Uploader first(budget, no_tensors());
    Uploader second(budget, no_tensors());
    const Bytes a("a", 1'000);
    const Bytes b("b", 1'000);
    const Lease lease = first.acquire(first.bundle(std::vector{a.tensor}));
    const std::vector<FillTarget> targets = {{b.tensor, lease.tensors()[0].address(), 1'000}};
    CHECK_FAULT(second.fill(targets), Errc::invalid_argument);
    CHECK(read_back(*host, lease.tensors()[0]) == value_of(a.tensor));
}

TEST_CASE("without a device or a name there is an error, and what was moved from still works") {
    CHECK_FAULT(DeviceBudget(nullptr), Errc::invalid_argument);
    CHECK_FAULT(Uploader(std::shared_ptr<Device>(), no_tensors()), Errc::invalid_argument);
    DeviceBudget budget(Device::open("host"), {.device_bytes = 1'000});
    const DeviceBudget taken = std::move(budget);
    CHECK(budget.device_bytes() == 1'000);
    Checkpoint model = no_tensors();
    const Checkpoint other = std::move(model);
    CHECK(model.size() == other.size());
    Uploader uploader(budget, model);
    const char* const nothing = nullptr;
    CHECK_FAULT(uploader.bundle(nothing), Errc::invalid_argument);
}

TEST_CASE("a budget says what it is") {
    const auto device = std::make_shared<FakeDevice>();
    CHECK(DeviceBudget(device).device_bytes() == 900'000);  // nine tenths of what is free
    const DeviceBudget budget(device, {.device_bytes = 1'000});
    CHECK(budget.device_bytes() == 1'000);
    CHECK(budget.device() == device);
    CHECK(budget.stats().device_bytes == 0);
    CHECK_FAULT((DeviceBudget(device, {.staging_bytes = 4'095})), Errc::invalid_argument);
    // A limit beyond the budget has no effect.
    Uploader uploader(budget, no_tensors(), {.device_budget = 5'000});
    const Bytes large("large", 1'001);
    CHECK_FAULT(uploader.acquire(uploader.bundle(std::vector{large.tensor})), Errc::budget_exceeded);
}

TEST_CASE("an uploader that gives memory back waits for no stream that uses memory of a neighbour") {
    const auto fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream stream;
    const DeviceBudget budget(fake, {.device_bytes = 100'000});
    Uploader neighbour(budget, no_tensors());
    std::optional<Uploader> uploader(std::in_place, budget, no_tensors());
    const Bytes theirs("theirs", 20'000);
    const Bytes own("own", 10'000);
    // Nobody has this bundle any more, so its memory is kept for the next one.
    static_cast<void>(neighbour.acquire(neighbour.bundle(std::span(&theirs.tensor, 1)), stream.native()));
    const Bundle bundle = uploader->bundle(std::span(&own.tensor, 1));
    std::atomic<int> done = 0;
    std::thread thread([&] {
        static_cast<void>(uploader->acquire(bundle));
        uploader->evict(bundle);
        ++done;
        UploadOrder order = uploader->follow(std::span(&bundle, 1));
        static_cast<void>(order.next());
        order.end();
        ++done;
        static_cast<void>(uploader->sleep());
        ++done;
        uploader.reset();
        ++done;
    });
    for (int i = 0; i < 2000 && done < 4; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(done == 4);
    CHECK(fake->allocated >= 20'000);
    stream.finish();
    thread.join();
    neighbour.evict(Selection());
    CHECK(fake->allocated == 0);
    CHECK(fake->was_used_well());
}

TEST_CASE("an uploader cancels its own prefetch, and takes what a neighbour prefetched, for one demand") {
    const DeviceBudget budget(Device::open("host"), {.device_bytes = 100'000});
    Uploader neighbour(budget, no_tensors());
    Uploader uploader(budget, no_tensors());
    const Bytes theirs("theirs", 10'000);
    const Bytes own("own", 50'000);
    const Bytes whole("whole", 100'000);
    const Bundle there = neighbour.bundle(std::span(&theirs.tensor, 1));
    const Bundle comes = uploader.bundle(std::span(&own.tensor, 1));
    const Bundle wanted = uploader.bundle(std::span(&whole.tensor, 1));
    neighbour.prefetch(there);
    CHECK(soon([&] { return neighbour.stats().resident_bytes == 10'000; }));
    own.counted.hold();
    uploader.prefetch(comes);
    CHECK(soon([&] { return own.counted.reads() > 0; }));
    std::thread thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        own.counted.go_on();
    });
    CHECK_OK(uploader.acquire(wanted));
    thread.join();
    CHECK(neighbour.stats().resident_bytes == 0);
}

}  // namespace budget_test
