// Tests the order of copies and of the work of callers' streams.
#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace order_test {

using namespace safemap;
using safemap::device::Cache;

namespace {

/// A bundle that takes the whole budget, and one that takes its place.
struct Two {
    explicit Two(std::uint64_t bytes = 20'000)
        : first("first", bytes),
          second("second", bytes),
          cache(fake, bytes),
          a(cache.bundle(first.tensor)),
          b(cache.bundle(second.tensor)) {}

    /// Ends the work of the streams: the cache waits for it when it is destroyed.
    ~Two() {
        stream.finish();
        other.finish();
    }
    Two(const Two&) = delete;
    Two& operator=(const Two&) = delete;

    const Bytes first;
    const Bytes second;
    const std::shared_ptr<FakeDevice> fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream stream;
    FakeDevice::Stream other;
    const CacheFixture cache;
    const BundlePtr a;
    const BundlePtr b;
};

/// Returns true if `begin` is not over after some time, and over soon after `end`.
template <class Begin, class End> bool waits_until(Begin&& begin, End&& end) {
    std::atomic<bool> over = false;
    std::thread thread([&] {
        begin();
        over = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool early = over;
    end();
    thread.join();
    return !early;
}

}  // namespace

TEST_CASE("an acquire on a stream returns before the copies are done, and lets the stream wait for them") {
    Two two;
    two.fake->pause(true);
    const Held held = two.cache.acquire(two.a, two.stream.native());  // would block for ever
    CHECK(two.stream.waits == 1);
    CHECK(two.stream.records == 0);
    two.fake->pause(false);
    const Held there = two.cache.acquire(two.a);
    CHECK(read_back(*two.fake, there[0]) == value_of(two.first.tensor));
}

TEST_CASE("an acquire without a stream waits for the copies, also of a bundle that another one acquired on a stream") {
    Two two;
    two.fake->pause(true);
    const Held held = two.cache.acquire(two.a, two.stream.native());
    CHECK(waits_until([&] { const Held there = two.cache.acquire(two.a); }, [&] { two.fake->pause(false); }));
}

TEST_CASE("a stream need not wait for copies that are done") {
    Two two;
    { const Held held = two.cache.acquire(two.a); }
    const Held held = two.cache.acquire(two.a, two.stream.native());
    CHECK(two.stream.waits == 0);
}

TEST_CASE("try_acquire has a bundle whose copies are queued, and orders the stream") {
    Two two;
    CHECK_FALSE(two.cache.try_acquire(two.a, two.stream.native()));
    two.fake->pause(true);
    { const Held held = two.cache.acquire(two.a, two.stream.native()); }
    CHECK(two.cache.try_acquire(two.a, two.other.native()));
    CHECK(two.other.waits == 1);
    two.fake->pause(false);
}

TEST_CASE("memory is written again only after the work of the streams that used it, and nobody waits for that") {
    Two two;
    { const Held there = two.cache.acquire(two.a); }
    {
        const Held one = two.cache.acquire(two.a, two.stream.native());
        const Held again = two.cache.acquire(two.a, two.stream.native());
        const Held another = two.cache.acquire(two.a, two.other.native());
    }
    CHECK(two.stream.records == 2);
    CHECK(two.other.records == 1);
    const Held next = two.cache.acquire(two.b, two.other.native());  // the host does not wait
    CHECK(two.fake->allocations == 1);
    CHECK(two.fake->waits >= 2);
    CHECK(read_back(*two.fake, next[0]) == value_of(two.first.tensor));  // still what the work reads
    two.other.finish();
    CHECK(read_back(*two.fake, next[0]) == value_of(two.first.tensor));
    two.stream.finish();
    const Held there = two.cache.acquire(two.b);
    CHECK(read_back(*two.fake, there[0]) == value_of(two.second.tensor));
}

TEST_CASE("a lease that ended without a stream leaves no fence") {
    Two two;
    { const Held held = two.cache.acquire(two.a); }
    const Held next = two.cache.acquire(two.b);
    CHECK(two.fake->waits == 0);
    CHECK(read_back(*two.fake, next[0]) == value_of(two.second.tensor));
}

TEST_CASE("memory is freed only after the work of the stream that used it") {
    for (const bool by_sleep : {false, true}) {
        CAPTURE(by_sleep);
        Two two;
        { const Held held = two.cache.acquire(two.a, two.stream.native()); }
        CHECK(waits_until(
            [&] {
                if (by_sleep) two.cache.sleep();
                else two.cache.evict(two.a);
            },
            [&] {
                CHECK(two.fake->allocated == 20'000);
                two.stream.finish();
            }));
        CHECK(two.fake->allocated == 0);
    }
}

TEST_CASE("the digest of a tensor waits for the copies that bring it") {
    Two two;
    two.fake->pause(true);
    const Held held = two.cache.acquire(two.a, two.stream.native());
    std::string digest;
    CHECK(waits_until([&] { digest = safemap::digest(*two.fake, held[0]); }, [&] { two.fake->pause(false); }));
    const Held there = two.cache.acquire(two.a);
    CHECK(digest == safemap::digest(*two.fake, there[0]));
}

TEST_CASE("a lease that outlives the uploader is freed when its stream has passed") {
    Two two;
    std::optional<Held> held = two.cache.acquire(two.a, two.stream.native());
    CHECK_OK(two.a->view->cache->stop(*two.a->view));
    CHECK(waits_until([&] { held.reset(); }, [&] { two.stream.finish(); }));
    CHECK(two.fake->allocated == 0);
}

TEST_CASE("a stream that is being captured waits on the host, and keeps what it acquired") {
    Two two;
    two.stream.captured = true;
    { const Held held = two.cache.acquire(two.a, two.stream.native()); }
    CHECK(two.stream.waits == 0);
    CHECK(two.stream.records == 0);
    check_error(error_of([&] { two.cache.acquire(two.b); }), {Errc::budget_exceeded}, {});
    CHECK(two.cache.stats().resident_bytes == 20'000);
}

TEST_CASE("a stream of another kind of device is refused, and leaves no lease") {
    Two two;
    int queue = 0;
    CHECK_FAULT(two.cache.acquire(two.a, NativeStream::opencl(&queue)), Errc::invalid_argument);
    CHECK_OK(two.cache.acquire(two.b));
    const CacheFixture host(Device::open("host"), 100'000);
    const auto error = error_of([&] { host.acquire(host.bundle(two.first.tensor), two.stream.native()); });
    REQUIRE(error);
    CHECK(error->message() == "a CUDA stream was given to the device 'host'");
}

TEST_CASE("small bundles that share a block have its fences") {
    const auto fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream stream;
    const CacheFixture cache(fake, 1_MiB);
    std::vector<Bytes> small;
    std::vector<BundlePtr> bundles;
    for (int i = 0; i < 3; ++i) {
        small.emplace_back("small." + std::to_string(i), 1'000);
        bundles.push_back(cache.bundle(small.back().tensor));
        cache.acquire(bundles.back(), stream.native());
    }
    CHECK(fake->allocations == 1);
    const Bytes large("large", 1_MiB);
    const BundlePtr all = cache.bundle(large.tensor);
    CHECK(waits_until([&] { const Held held = cache.acquire(all); }, [&] { stream.finish(); }));
    CHECK(fake->was_used_well());
}

TEST_CASE("when the device fails, the acquire that finds it says so, and every one after it") {
    Two two;
    const Bytes small("small", 0);
    const BundlePtr none = two.cache.bundle(small.tensor);
    CHECK_OK(two.cache.acquire(none));
    two.fake->fail_device = 0;
    check_error(error_of([&] { two.cache.acquire(two.a); }), {Errc::device_failed}, {}, {.tensor = "first"});
    CHECK_FAULT(two.cache.acquire(two.b), Errc::device_failed);
    CHECK_FAULT(two.cache.acquire(none), Errc::device_failed);
    CHECK_FAULT(two.cache.try_acquire(none), Errc::device_failed);
}

TEST_CASE("a device that fails while leases are held ends them safely") {
    Two two;
    two.fake->pause(true);
    two.fake->fail_device = 0;
    std::optional<Held> held = two.cache.acquire(two.a, two.stream.native());
    two.fake->pause(false);
    CHECK_FAULT(two.a->view->cache->order(*two.a, {}), Errc::device_failed);
    held.reset();
    CHECK_FAULT(two.cache.acquire(two.a, two.stream.native()), Errc::device_failed);
    CHECK_OK(two.cache.evict(two.a));
    CHECK(two.fake->allocated == 0);
}

TEST_CASE("when a copy of a bundle of several tensors fails, no tensor is blamed") {
    const Two two;
    const Bytes third("third", 100);
    const Bytes fourth("fourth", 100);
    const BundlePtr both = two.cache.bundle({third.tensor, fourth.tensor});
    two.fake->fail_device = 0;
    check_error(error_of([&] { two.cache.acquire(both); }), {Errc::device_failed}, {}, {.tensor = ""});
}

}  // namespace order_test
