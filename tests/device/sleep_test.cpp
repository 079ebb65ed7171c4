// Tests sleep that keeps addresses, on the host and on a fake device: each bundle comes back where it was, the memory
// is gone meanwhile, and the budget is never exceeded.
#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/device.hpp>
#include <safemap/uploader.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sleep_test {

using namespace safemap;

namespace {

/// Place of a tensor on its device.
using Spot = std::pair<const void*, std::uint64_t>;

Spot spot_of(const Held& held) { return {held[0].memory()->handle(), held[0].offset()}; }

/// Bundles of one tensor each, of which some share a block.
struct Model {
    explicit Model(std::shared_ptr<Device> on, std::uint64_t budget = 4'000'000, unsigned readers = 2)
        : device(std::move(on)), cache(device, {.device_budget = budget, .readers = readers, .keep_addresses = true}) {
        for (const std::uint64_t size : {100'000U, 300U, 70'000U, 2'000U, 0U, 9'000U, 100'000U, 5U})
            tensors.emplace_back("t" + std::to_string(tensors.size()), size);
        for (const Bytes& one : tensors) bundles.push_back(cache.bundle(one.tensor));
    }
    Held acquire(std::size_t i) const {
        Held held = cache.acquire(bundles[i]);
        CHECK(read_back(*device, held[0]) == value_of(tensors[i].tensor));
        return held;
    }
    std::vector<Spot> spots() const {
        std::vector<Spot> all;
        for (std::size_t i = 0; i < bundles.size(); ++i) all.push_back(spot_of(acquire(i)));
        return all;
    }
    bool all_there() const {
        for (const BundlePtr& bundle : bundles)
            if (!cache.try_acquire(bundle)) return false;
        return true;
    }

    std::shared_ptr<Device> device;
    std::vector<Bytes> tensors;
    CacheFixture cache;
    std::vector<BundlePtr> bundles;
};

/// Returns true if the kernel has pages for a part of these bytes.
bool has_pages(std::span<const std::byte> bytes) {
    std::vector<unsigned char> pages((bytes.size() + 4095) / 4096);
    if (::mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()) != 0) return true;
    for (const unsigned char page : pages)
        if ((page & 1) != 0) return true;
    return false;
}

/// Uses a cache that has room for all its bundles, and notes where each one is. Returns the number of bundles that were
/// found at another place than before, or with other values.
int use(const Model& model, std::vector<std::atomic<std::uintptr_t>>& seen, unsigned seed, int steps) {
    std::mt19937 random(seed);
    std::vector<Held> leases;
    int wrong = 0;
    for (int step = 0; step < steps; ++step) {
        const std::size_t i = random() % model.bundles.size();
        switch (random() % 8) {
            case 0: static_cast<void>(model.cache.sleep()); break;
            case 1: model.cache.wake(); break;
            case 2: model.cache.prefetch(model.bundles[i]); break;
            case 3: leases.clear(); break;
            default: {
                Held held = model.cache.acquire(model.bundles[i]);
                const auto [memory, offset] = spot_of(held);
                const std::uintptr_t now = reinterpret_cast<std::uintptr_t>(memory) + offset;
                std::uintptr_t before = 0;
                if (!seen[i].compare_exchange_strong(before, now) && before != now) ++wrong;
                if (read_back(*model.device, held[0]) != value_of(model.tensors[i].tensor)) ++wrong;
                if (random() % 4 == 0) leases.push_back(std::move(held));
            }
        }
    }
    return wrong;
}

void use_from_threads(std::shared_ptr<Device> device, unsigned seed) {
    CAPTURE(seed);
    const Model model(std::move(device), 4'000'000, 1 + seed % 3);
    std::vector<std::atomic<std::uintptr_t>> seen(model.bundles.size());
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) threads.emplace_back([&, t] { wrong += use(model, seen, seed * 10 + t, 100); });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    CHECK(model.cache.sleep() == 0);
    CHECK(model.cache.view()->cache->stats().device_bytes == 0);
}

}  // namespace

TEST_CASE("reserved memory of the host comes and goes at one address") {
    const auto device = Device::open("host");
    const auto memory = device->reserve(3'000'000);
    const std::uint64_t page = device->reserve(1)->size();
    CHECK(memory->size() % page == 0);
    CHECK(memory->size() >= 3'000'000);
    void* const address = memory->handle();
    for (int i = 0; i < 2; ++i) {
        memory->commit();
        const std::span<std::byte> bytes = memory->host_bytes();
        CHECK(bytes.front() == std::byte{0});
        std::ranges::fill(bytes, std::byte{7});
        memory->commit();  // does nothing
        CHECK(bytes.back() == std::byte{7});
        CHECK(has_pages(bytes));
        memory->decommit();
        CHECK_FALSE(has_pages(bytes));
        CHECK(memory->handle() == address);
    }
    device->reserve(0)->commit();
    CHECK_FAULT(device->reserve(UINT64_MAX), Errc::out_of_memory);
    CHECK_FAULT(device->allocate(1)->commit(), Errc::invalid_argument);
    CHECK_FAULT(device->allocate(1)->decommit(), Errc::invalid_argument);
}

TEST_CASE("bundles come back where they were, and have no memory meanwhile") {
    const auto fake = std::make_shared<FakeDevice>();
    for (const bool on_host : {true, false}) {
        CAPTURE(on_host);
        const Model model(on_host ? Device::open("host") : fake);
        const std::vector<Spot> before = model.spots();
        for (int i = 0; i < 3; ++i) {
            CHECK(model.cache.sleep() == 0);
            CHECK(model.cache.stats().resident_bytes == 0);
            CHECK(model.cache.view()->cache->stats().device_bytes == 0);
            CHECK(fake->allocated == 0);
            model.cache.wake();
            if (i == 1) CHECK(soon([&] { return model.all_there(); }));
            CHECK(model.spots() == before);
        }
        for (int i = 0; i < 2; ++i) {
            CHECK(model.cache.sleep() == 0);
            CHECK(model.cache.view()->asleep.size() == model.bundles.size());
            CHECK(model.spots() == before);  // without wake()
        }
    }
    CHECK(fake->was_used_well());
}

TEST_CASE("bundles that come later do not take the places of those that are to come back") {
    const Model model(Device::open("host"));
    const std::vector<Spot> before = model.spots();
    const Bytes equal("equal", 100'000);
    const Bytes small("small", 300);
    const BundlePtr large = model.cache.bundle(equal.tensor);
    const BundlePtr little = model.cache.bundle(small.tensor);
    CHECK(model.cache.sleep() == 0);
    const Held one = model.cache.acquire(large);
    const Held other = model.cache.acquire(little);
    model.acquire(1);
    CHECK(model.cache.sleep() > 0);  // both are leased
    CHECK(model.spots() == before);
    CHECK(read_back(*model.device, one[0]) == value_of(equal.tensor));
    CHECK(read_back(*model.device, other[0]) == value_of(small.tensor));
}

TEST_CASE("a lease keeps its memory while the others sleep, and a block with it") {
    const auto fake = std::make_shared<FakeDevice>();
    const Model model(fake);
    const std::vector<Spot> before = model.spots();
    const Held large = model.acquire(0);
    const Held small = model.acquire(1);
    CHECK(model.cache.sleep() >= 100'300);
    CHECK(model.cache.try_acquire(model.bundles[3]).has_value());  // it shares the block
    CHECK_FALSE(model.cache.try_acquire(model.bundles[2]).has_value());
    model.cache.wake();
    CHECK(model.spots() == before);
    CHECK(fake->was_used_well());
}

TEST_CASE("the addresses of bundles that end are given back, and so are all at the end") {
    const auto fake = std::make_shared<FakeDevice>();
    {
        Model model(fake);
        const std::vector<Spot> before = model.spots();
        CHECK(model.cache.sleep() == 0);
        CHECK(model.cache.view()->account.places.size() == model.bundles.size());
        model.cache.wake();
        CHECK(soon([&] { return model.all_there(); }));
        CHECK(model.cache.view()->account.places.empty());
        CHECK(model.cache.sleep() == 0);
        const auto view = model.cache.view();
        model.cache.stop();
        CHECK(view->account.places.empty());
    }
    CHECK(fake->allocated == 0);
}

TEST_CASE("memory at kept addresses makes way for others, and comes back there") {
    const auto fake = std::make_shared<FakeDevice>();
    const auto shared = device::Cache::make(fake, {.device_bytes = 1'000'000, .staging_bytes = 100'000});
    const CacheFixture sleeper(shared, {.readers = 1, .keep_addresses = true});
    const CacheFixture other(shared, {.readers = 1});
    const Bytes weight("weight", 600'000);
    const Bytes guest("guest", 600'000);
    const BundlePtr bundle = sleeper.bundle(weight.tensor);
    const Spot before = spot_of(sleeper.acquire(bundle));
    CHECK(sleeper.sleep() == 0);
    for (int i = 0; i < 3; ++i) {
        other.acquire(other.bundle(guest.tensor));
        // The upload gets its memory, and is cancelled.
        sleeper.prefetch(bundle);
        if (i > 0) CHECK(sleeper.sleep() == 0);
    }
    const Held held = sleeper.acquire(bundle);
    CHECK(spot_of(held) == before);
    CHECK(read_back(*fake, held[0]) == value_of(weight.tensor));
    CHECK(fake->peak <= 1'000'000);
    CHECK(fake->was_used_well());
}

TEST_CASE("a block that a group is to come back to does not make way for that group") {
    constexpr std::uint64_t most = 1'100'000;
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, {.device_budget = most, .readers = 1, .keep_addresses = true});
    const Bytes first("first", 256);
    const Bytes second("second", 256);
    const Bytes recent("recent", 512'000);
    const Bytes opener("opener", 9'000);  // does not fit into the first block
    // With both blocks and `recent`, 64 bytes too many.
    const Bytes large("large", most / 64 * 64 - 512'000 - 4096 - 9'216 + 64);
    const BundlePtr one = cache.bundle(first.tensor);
    const BundlePtr two = cache.bundle(second.tensor);
    const BundlePtr other = cache.bundle(recent.tensor);
    cache.acquire(one);
    const Spot before = spot_of(cache.acquire(two));
    CHECK(cache.sleep() == 0);
    cache.acquire(one);
    const Held open = cache.acquire(cache.bundle(opener.tensor));  // its block is the open one now
    cache.prefetch(other);                                         // goes after what was acquired
    CHECK(soon([&] { return other->groups.front()->word.state() == device::Word::State::resident; }));
    const Held held = cache.acquire(cache.bundle({second.tensor, large.tensor}));
    CHECK(spot_of(held) == before);
    CHECK(cache.try_acquire(one).has_value());
    CHECK(fake->peak <= most);
    CHECK(fake->was_used_well());
}

TEST_CASE("a group that comes back waits until its cancelled upload writes to its place no more") {
    const Model model(Device::open("host"));
    const std::vector<Spot> before = model.spots();
    CHECK(model.cache.sleep() == 0);
    const Counted& source = model.tensors[3].counted;
    source.hold();
    const std::uint64_t reads = source.reads();
    model.cache.prefetch(model.bundles[3]);
    CHECK(soon([&] { return source.reads() == reads + 1; }));
    std::thread sleeper([&] { static_cast<void>(model.cache.sleep()); });
    const device::Group& group = *model.bundles[3]->groups.front();
    CHECK(soon([&] { return group.word.state() == device::Word::State::absent; }));
    std::thread user([&] { CHECK(spot_of(model.acquire(3)) == before[3]); });
    CHECK(soon([&] { return group.word.state() == device::Word::State::arriving; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(source.reads() == reads + 1);
    source.go_on();
    sleeper.join();
    user.join();
    CHECK(model.spots() == before);
}

TEST_CASE("memory that cannot be had again is an error, and the next attempt has the address") {
    const auto fake = std::make_shared<FakeDevice>();
    const Model model(fake);
    const std::vector<Spot> before = model.spots();
    CHECK(model.cache.sleep() == 0);
    fake->full = true;
    for (std::size_t i = 0; i < model.bundles.size(); ++i) {
        const auto error = error_of([&] { return model.cache.acquire(model.bundles[i]); });
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::out_of_memory);
        CHECK(error->tensor() == model.tensors[i].tensor.name());
    }
    fake->full = false;
    CHECK(model.spots() == before);
    CHECK(fake->was_used_well());
}

TEST_CASE("random sleeps of several threads leave each bundle where it was") {
    const unsigned first = soak::seed(0) % 1'000'000;
    for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(24)); ++i) {
        use_from_threads(Device::open("host"), first + i);
        const auto fake = std::make_shared<FakeDevice>();
        fake->copy_microseconds = static_cast<int>(i % 3) * 20;
        use_from_threads(fake, first + i);
        CHECK(fake->allocated == 0);
        CHECK(fake->was_used_well());
    }
}

TEST_CASE("a budget below one unit of memory is refused with the unit") {
    const Bytes one("one", 100);
    const CacheFixture cache(Device::open("host"), {.device_budget = 1'000, .keep_addresses = true});
    const auto error = error_of([&] { return cache.acquire(cache.bundle(one.tensor)); });
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::budget_exceeded);
    CHECK(error->message().find("in multiples of ") != std::string::npos);
}

TEST_CASE("addresses that are kept for a bundle that sleeps are not filled") {
    const Model model(Device::open("host"));
    void* const address = model.acquire(0)[0].address();
    CHECK(model.cache.sleep() == 0);
    const FillTarget target{model.tensors[6].tensor, address, 100'000};
    CHECK_FAULT(model.cache.fill({target}), Errc::invalid_argument);
    model.cache.wake();
    CHECK(model.acquire(0)[0].address() == address);
    CHECK_FAULT(model.cache.fill({target}), Errc::invalid_argument);  // while it is resident
}

}  // namespace sleep_test
