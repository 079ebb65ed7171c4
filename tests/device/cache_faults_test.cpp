// Tests the cache when reads, copies or allocations fail, and when it stops.
#include "device/cache.hpp"

#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/device.hpp>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cache_faults_test {

using namespace safemap;
using device::Cache;

TEST_CASE("a failed read is thrown by acquire, leaves nothing resident, and can be repeated") {
    for (const bool staged : {false, true}) {
        CAPTURE(staged);
        const auto fake = std::make_shared<FakeDevice>();
        const CacheFixture cache(staged ? fake : Device::open("host"), 40_MiB);
        const Bytes large("large", 33_MiB);
        const BundlePtr bundle = cache.bundle(large.tensor);
        for (std::int64_t nth = 0; nth < 5; ++nth) {
            CAPTURE(nth);
            large.counted.fail_after(nth);
            check_error(error_of([&] { cache.acquire(bundle); }), {Errc::io_error}, {}, {.tensor = "large"});
            CHECK(cache.stats().resident_bytes == 0);
            CHECK_FALSE(Cache::try_lease(*bundle));
        }
        large.counted.fail_after(-1);
        CHECK_OK(cache.acquire(bundle));
        CHECK(cache.stats().uploaded_bytes == 33_MiB);
        CHECK(fake->peak <= 40_MiB);
        CHECK(fake->allocations <= 1);  // the memory of failed uploads is used again
        cache.evict(bundle);
        CHECK(fake->allocated == 0);
        CHECK(fake->was_used_well());
    }
}

TEST_CASE("an exception of another type reaches the caller unchanged") {
    const CacheFixture cache(Device::open("host"), 100);
    const auto source = callback_source("odd", 4, [](std::uint64_t, std::span<std::byte>) { throw 42; });
    const LazyTensor tensor("t", stored_run(Dtype::u8, {4}, source, 0));
    CHECK_THROWS_AS(cache.acquire(tensor), int);
    CHECK(cache.stats().resident_bytes == 0);
}

TEST_CASE("a fault of one group does not affect the others of a bundle") {
    const CacheFixture cache(Device::open("host"), 100, 1);
    const Bytes good("good", 10);
    const Bytes bad("bad", 10);
    const BundlePtr owners[] = {cache.bundle(good.tensor), cache.bundle(bad.tensor)};
    const BundlePtr both = cache.bundle({good.tensor, bad.tensor});
    bad.counted.fail_after(0);
    CHECK_FAULT(cache.acquire(both), Errc::io_error);
    CHECK_OK(cache.acquire(owners[0]));
    CHECK(good.counted.bytes() == 10);
    CHECK_OK(cache.acquire(both));
    CHECK(good.counted.bytes() == 10);
    cache.evict(both);  // nothing is still leased
    CHECK(cache.stats().resident_bytes == 0);
}

TEST_CASE("a device without memory for a bundle names the bundle, not its first tensor") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100_MiB);
    const Bytes a("a", 1_MiB);
    const Bytes b("b", 1_MiB);
    fake->full = true;
    check_error(error_of([&] {
                    cache.acquire(cache.bundle({a.tensor, b.tensor}));
                }),
                {Errc::out_of_memory}, {"for a bundle of 2 tensors, ", " to ", "the device is full"}, {.tensor = ""});
}

TEST_CASE("a full device or a failed copy affects only the bundle concerned") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100_MiB);
    const Bytes other("other", 1_MiB);
    const Held unaffected = cache.acquire(other.tensor);
    const Bytes tensor("t", 20_MiB);
    fake->full = true;
    const auto full = error_of([&] { cache.acquire(tensor.tensor); });
    check_error(full, {Errc::out_of_memory}, {});
    CHECK(full->tensor() == "t");
    fake->full = false;
    for (int nth = 0; nth < 3; ++nth) {
        CAPTURE(nth);
        fake->fail_copy = nth;
        check_error(error_of([&] { cache.acquire(tensor.tensor); }), {Errc::io_error}, {}, {.tensor = "t"});
        CHECK(cache.stats().resident_bytes == 1_MiB);
    }
    const Held held = cache.acquire(tensor.tensor);
    CHECK(read_back(*fake, held[0]) == value_of(tensor.tensor));
    CHECK(read_back(*fake, unaffected[0]) == value_of(other.tensor));
    CHECK(cache.stats().uploaded_bytes == 21_MiB);
}

TEST_CASE("if the device is full, memory that is kept is freed, and the allocation repeated") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 100'000);
    const Bytes small("small", 10'000);
    const Bytes large("large", 50'000);
    cache.acquire(cache.bundle(small.tensor));  // gone: its memory is kept
    CHECK(fake->allocated == 10'000);
    fake->fail_allocation = 0;
    CHECK_OK(cache.acquire(large.tensor));
    CHECK(fake->allocated == 50'000);
    CHECK(fake->allocations == 2);
}

TEST_CASE("memory is not freed while a copy is running, even if the state of another copy is unknown") {
    const auto fake = std::make_shared<FakeDevice>();
    const Bytes tensor("t", 16_MiB);
    fake->copy_microseconds = 20'000;
    for (std::int64_t nth = 0; nth < 4; ++nth) {
        CAPTURE(nth);
        const CacheFixture cache(fake, {.device_budget = 20_MiB, .staging_bytes = 32_MiB, .readers = 1});
        fake->pause(true);
        fake->copies = 0;
        *fake->fail_done = nth;
        cache.prefetch(tensor.tensor);  // one reader uploads one job after the other
        for (int i = 0; i < 300 && fake->copies < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        fake->pause(false);
        std::optional<Held> held;
        const auto error = error_of([&] { held = cache.acquire(tensor.tensor); });
        if (held) CHECK(read_back(*fake, (*held)[0]) == value_of(tensor.tensor));
        held.reset();
        cache.evict(tensor.tensor);
        CHECK(fake->allocated == 0);
        CHECK(fake->was_used_well());
        if (error) CHECK(error->message() == "nobody knows");
    }
}

TEST_CASE("at most sixteen readers are started") {
    const auto threads = [] {
        const std::filesystem::directory_iterator tasks("/proc/self/task");
        return std::distance(begin(tasks), end(tasks));
    };
    const auto before = threads();
    const CacheFixture cache(Device::open("host"), 100, 1024);
    CHECK(threads() <= before);  // one of an earlier test may have ended since
    const Bytes a("a", 60);
    cache.prefetch(a.tensor);
    CHECK(threads() > before);
    CHECK(threads() <= before + 16);
}

TEST_CASE("a cache can stop during uploads, and leaves nothing on the device") {
    for (const bool staged : {false, true}) {
        CAPTURE(staged);
        const auto fake = std::make_shared<FakeDevice>();
        fake->copy_microseconds = 200;
        for (int delay = 0; delay < 6; ++delay) {
            CacheFixture cache(staged ? fake : Device::open("host"), 200_MiB, 3);
            std::vector<Bytes> tensors;
            std::vector<LazyTensor> all;
            for (int i = 0; i < 6; ++i) {
                tensors.emplace_back("t" + std::to_string(i), i % 2 == 0 ? 1000 : 9_MiB);
                all.push_back(tensors.back().tensor);
            }
            cache.prefetch(all);
            std::this_thread::sleep_for(std::chrono::milliseconds(delay * delay));
            cache.stop();
            CHECK(fake->allocated == 0);
        }
        CHECK(fake->was_used_well());
    }
}

TEST_CASE("a lease outlives the cache") {
    for (const std::uint64_t budget : {std::uint64_t{100}, 2_MiB}) {  // without and with shared blocks
        CAPTURE(budget);
        const auto fake = std::make_shared<FakeDevice>();
        CacheFixture cache(fake, budget);
        const Bytes a("a", 10);
        const Bytes b("b", 10);
        Held held = cache.acquire(a.tensor);
        cache.acquire(b.tensor);
        cache.stop();
        if (budget == 100) CHECK(fake->allocated == 10);
        CHECK(read_back(*fake, held[0]) == value_of(a.tensor));
        held.reset();
        CHECK(fake->allocated == 0);
    }
}

TEST_CASE("without a budget, a cache takes nine tenths of the free memory") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 0);
    const Bytes fits("fits", 900'000);
    const Bytes too_large("too_large", 900'001);
    CHECK_OK(cache.acquire(fits.tensor));
    CHECK_FAULT(cache.acquire(too_large.tensor), Errc::budget_exceeded);
}

TEST_CASE("too little staging memory is refused") {
    CHECK_FAULT(CacheFixture(Device::open("host"), UploadOptions{.staging_bytes = 4095}), Errc::invalid_argument);
}

}  // namespace cache_faults_test
