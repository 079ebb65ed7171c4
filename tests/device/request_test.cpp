// Tests requests: leases that come later, deadlines, cancelling and priority.
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/uploader.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace request_test {

using namespace safemap;
using safemap::device::Cache;
using safemap::device::Readers;
using Clock = std::chrono::steady_clock;

namespace {

Request within(int milliseconds) { return {.deadline = Clock::now() + std::chrono::milliseconds(milliseconds)}; }

/// An uploader over nothing but the tensors that its bundles are made of.
struct World {
    explicit World(std::uint64_t budget = 1'000'000, std::shared_ptr<Device> device = Device::open("host"))
        : uploader(std::in_place, std::move(device), no_tensors(),
                   UploadOptions{.device_budget = budget, .readers = 2}) {}

    Bundle bundle(const Bytes& bytes) { return uploader->bundle(std::span(&bytes.tensor, 1)); }

    std::optional<Uploader> uploader;
};

}  // namespace

TEST_CASE("a request is for a lease that comes later, and readers upload it meanwhile") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bundle bundle = world.bundle(bytes);
    bytes.counted.hold();
    Lease ticket = world.uploader->request(bundle);
    CHECK_FALSE(ticket.ready());
    bytes.counted.go_on();
    CHECK(soon([&] { return ticket.ready(); }));
    CHECK(world.uploader->try_acquire(bundle));
    CHECK(ticket.tensors().empty());
    CHECK_FAULT(ticket["t"], Errc::invalid_argument);
    ticket.wait();
    CHECK(ticket.tensors()[0].name() == "t");
    const auto value = value_of(bytes.tensor);
    CHECK(std::ranges::equal(ticket["t"].host_bytes(), value));
    CHECK(ticket["t"].address() == ticket["t"].host_bytes().data());
    CHECK(ticket.ready());
    CHECK_OK(ticket.wait());
    ticket.release();
    CHECK_FAULT(ticket.wait(), Errc::invalid_argument);
    CHECK_FAULT(Lease().wait(), Errc::invalid_argument);
}

TEST_CASE("a lease that was requested holds its memory until it is released or destroyed") {
    World world(100'000);
    const Bytes one("one", 100'000);
    const Bytes other("other", 100'000);
    const Bundle first = world.bundle(one);
    const Bundle second = world.bundle(other);
    Lease ticket = world.uploader->request(first);
    CHECK_FAULT(world.uploader->request(second).wait(), Errc::budget_exceeded);
    CHECK_FAULT(world.uploader->acquire(second), Errc::budget_exceeded);
    ticket.release();
    CHECK(ticket.ready());
    CHECK_OK(world.uploader->acquire(second));
    { const Lease gone = world.uploader->request(first); }
    ticket = world.uploader->request(second);
    ticket = Lease();
    CHECK_OK(world.uploader->acquire(first));
}

TEST_CASE("a lease that is not waited for ends the upload, unless somebody else wants it") {
    World world(100'000'000);
    const Bytes bytes("t", 80'000'000);  // ten jobs
    const Bundle bundle = world.bundle(bytes);
    bytes.counted.hold();
    world.uploader->request(bundle).release();
    bytes.counted.go_on();
    CHECK(soon([&] { return world.uploader->stats().resident_bytes == 0; }));
    CHECK_FALSE(world.uploader->try_acquire(bundle));
    CHECK(bytes.counted.bytes() < 80'000'000);

    Lease first = world.uploader->request(bundle);
    Lease second = world.uploader->request(bundle);
    first.release();
    CHECK_OK(second.wait());
    CHECK(world.uploader->try_acquire(bundle));
}

TEST_CASE("at the deadline acquire throws, and the upload goes on as a prefetch") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bytes other("other", 1'000'000);
    const Bundle bundle = world.bundle(bytes);
    bytes.counted.hold();
    std::optional<Error> late;
    const auto began = Clock::now();
    Lease ticket = world.uploader->request(bundle);
    late = error_of([&] { return world.uploader->acquire(bundle, {}, within(20)); });
    CHECK(Clock::now() >= began + std::chrono::milliseconds(20));
    REQUIRE(late);
    CHECK(late->code() == Errc::deadline_passed);
    ticket.release();  // the reader has the only job in hand
    bytes.counted.go_on();
    CHECK_OK(world.uploader->acquire(bundle));

    world.uploader->evict(bundle);
    bytes.counted.hold();
    const Request brief = within(500);
    ticket = world.uploader->request(bundle, brief);
    std::this_thread::sleep_until(brief.deadline);
    CHECK_FAULT(ticket.wait(), Errc::deadline_passed);
    bytes.counted.go_on();
    CHECK(soon([&] { return world.uploader->try_acquire(bundle).has_value(); }));
    // Nothing is leased.
    CHECK_OK(world.uploader->acquire(world.bundle(other)));
}

TEST_CASE("a deadline that passed before is refused, unless the bundle is there") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bundle bundle = world.bundle(bytes);
    const Request late = {.deadline = Clock::now() - std::chrono::seconds(1)};
    CHECK_FAULT(world.uploader->acquire(bundle, {}, late), Errc::deadline_passed);
    CHECK_FAULT(world.uploader->request(bundle, late).wait(), Errc::deadline_passed);
    CHECK(bytes.counted.reads() == 0);
    CHECK_OK(world.uploader->acquire(bundle));
    CHECK_OK(world.uploader->acquire(bundle, {}, late));
    CHECK_OK(world.uploader->request(bundle, late).wait());
}

TEST_CASE("a stop request ends a wait, and the upload") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bundle bundle = world.bundle(bytes);
    bytes.counted.hold();
    std::stop_source stop;
    Lease ticket = world.uploader->request(bundle, {.monitor = {.stop = stop.get_token()}});
    CHECK(soon([&] { return bytes.counted.reads() > 0; }));
    std::thread stopper([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        stop.request_stop();
    });
    CHECK_FAULT(ticket.wait(), Errc::cancelled);
    stopper.join();
    CHECK_FAULT(world.uploader->acquire(bundle, {}, {.monitor = {.stop = stop.get_token()}}), Errc::cancelled);
    bytes.counted.go_on();
    CHECK_OK(world.uploader->acquire(bundle));
}

TEST_CASE("an error of reading is thrown by wait()") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bundle bundle = world.bundle(bytes);
    bytes.counted.fail_after(0);
    Lease ticket = world.uploader->request(bundle);
    CHECK_FAULT(ticket.wait(), Errc::io_error);
    CHECK_OK(world.uploader->request(bundle).wait());
}

TEST_CASE("a lease is for the work of one stream") {
    const auto fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream one;
    FakeDevice::Stream other;
    World world(100'000, fake);
    const Bytes bytes("t", 10'000);
    const Bundle bundle = world.bundle(bytes);
    Lease lease = world.uploader->request(bundle);
    lease.wait(one.native());
    CHECK(lease["t"].address() == nullptr);  // memory of this device has no addresses
    CHECK_OK(lease.wait(one.native()));
    CHECK_OK(lease.wait());
    CHECK(lease.ready());
    CHECK_FAULT(lease.wait(other.native()), Errc::invalid_argument);
    CHECK_FAULT(lease.wait(NativeStream::opencl(nullptr)), Errc::invalid_argument);
    lease.release();
    CHECK(one.records == 1);
    one.finish();
}

TEST_CASE("a lease that was requested outlives its uploader") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bytes there("there", 100);
    const Bundle bundle = world.bundle(bytes);
    const Bundle resident = world.bundle(there);
    static_cast<void>(world.uploader->acquire(resident));
    Lease kept = world.uploader->request(resident);
    bytes.counted.hold();
    Lease ticket = world.uploader->request(bundle);
    Lease cancelled = world.uploader->request(bundle);
    std::thread go_on([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        bytes.counted.go_on();
    });
    world.uploader.reset();
    go_on.join();
    CHECK(ticket.ready());
    CHECK_FAULT(ticket.wait(), Errc::cancelled);
    kept.wait();
    CHECK(kept.tensors()[0].host_bytes().front() == value_of(there.tensor)[0]);
}

TEST_CASE("a copy that never ends is given up at the deadline or the stop request") {
    const auto fake = std::make_shared<FakeDevice>();
    const CacheFixture cache(fake, 20'000);
    const Bytes bytes("t", 20'000);
    const BundlePtr bundle = cache.bundle(bytes.tensor);
    fake->pause(true);
    CHECK_FAULT(cache.acquire(bundle, {}, within(5)), Errc::deadline_passed);
    std::stop_source stop;
    std::thread stopper([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        stop.request_stop();
    });
    CHECK_FAULT(cache.acquire(bundle, {}, {.monitor = {.stop = stop.get_token()}}), Errc::cancelled);
    stopper.join();
    fake->pause(false);
    CHECK_OK(cache.acquire(bundle));
}

TEST_CASE("memory that a stream never gives back is given up at the deadline, by the one that has it") {
    const auto fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream stream;
    const CacheFixture cache(fake, 20'000);
    const Bytes bytes("t", 20'000);
    const Bytes small("small", 10'000);
    const BundlePtr bundle = cache.bundle(bytes.tensor);
    const BundlePtr other = cache.bundle(small.tensor);
    { const Held held = cache.acquire(bundle, stream.native()); }
    // The memory has another size, so it would have to be freed.
    CHECK_FAULT(cache.acquire(other, {}, within(5)), Errc::deadline_passed);
    std::thread patient([&] { CHECK_OK(cache.acquire(other)); });
    CHECK_FAULT(cache.acquire(other, {}, within(5)), Errc::deadline_passed);
    stream.finish();
    patient.join();
    CHECK_OK(cache.acquire(other));
    CHECK(fake->was_used_well());
}

TEST_CASE("what is wanted more urgently is read first") {
    const auto cache = Cache::make(Device::open("host"), {.device_bytes = 10'000}, std::make_shared<Readers>());
    const auto view = cache->view({.readers = 1});
    const Bytes busy("busy", 1'000);
    const Bytes low("low", 1'000);
    const Bytes high("high", 1'000);
    const auto request = [&](const Bytes& bytes, int priority) {
        const BundlePtr bundle = Cache::bundle(view, {bytes.tensor});
        return std::pair(bundle, cache->try_request(*bundle, {.priority = priority}).value());
    };
    busy.counted.hold();
    low.counted.hold();
    const auto first = request(busy, 0);
    CHECK(soon([&] { return busy.counted.reads() == 1; }));
    const auto second = request(low, 1);
    const auto third = request(high, 2);
    busy.counted.go_on();  // otherwise the only reader would be held by `low`
    CHECK(soon([&] { return cache->are_over(third.second); }));
    low.counted.go_on();
    for (const auto& [bundle, uploads] : {first, second, third}) cache->end_request(*bundle, {}, uploads);
    for (const auto& [bundle, uploads] : {first, second, third}) cache->release(*bundle, {});
    cache->stop(*view);
}

TEST_CASE("a wait reports the bytes that are there, and their rate") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bytes there("there", 50'000);
    const std::vector<LazyTensor> both = {bytes.tensor, there.tensor};
    const Bundle resident = world.bundle(there);
    const Bundle bundle = world.uploader->bundle(both);
    static_cast<void>(world.uploader->acquire(resident));
    bytes.counted.hold();
    std::vector<Progress> reports;
    const auto report = [&](const Progress& progress) {
        reports.push_back(progress);
        if (reports.size() == 2) bytes.counted.go_on();
        return true;
    };
    const Request request{.deadline = Clock::now() + std::chrono::hours(1), .monitor = {.on_progress = report}};
    Lease lease = world.uploader->acquire(bundle, {}, request);
    REQUIRE(reports.size() >= 3);
    CHECK(reports.front().bytes_done == 50'000);
    CHECK(reports.front().bytes_per_second == 0);  // nothing came yet
    CHECK(reports.back().bytes_per_second > 0);
    CHECK(reports.back().bytes_per_second < 100'000 / 0.2);  // after two pauses
    CHECK(reports.back().bytes_done == bundle.device_bytes());
    for (const Progress& progress : reports) {
        CHECK(progress.stage == "uploading");
        CHECK(progress.bytes_total == bundle.device_bytes());
    }
    lease = world.uploader->acquire(bundle, {}, request);  // it is there
    CHECK(reports.back().bytes_done == bundle.device_bytes());
}

TEST_CASE("an upload that fails is not reported as done") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bundle bundle = world.bundle(bytes);
    bytes.counted.fail_after(0);
    std::uint64_t done = 0;
    const auto report = [&](const Progress& progress) {
        done = progress.bytes_done;
        return true;
    };
    CHECK_FAULT(world.uploader->acquire(bundle, {}, {.monitor = {.on_progress = report}}), Errc::io_error);
    CHECK(done < 100'000);
}

TEST_CASE("a monitor that refuses or throws ends the wait, and the upload") {
    World world;
    const Bytes bytes("t", 100'000);
    const Bundle bundle = world.bundle(bytes);
    const auto refuse = [](const Progress&) { return false; };
    CHECK_FAULT(world.uploader->acquire(bundle, {}, {.monitor = {.on_progress = refuse}}), Errc::cancelled);
    CHECK_OK(world.uploader->acquire(bundle));
    world.uploader->evict(bundle);
    bytes.counted.hold();
    const auto fail = [&](const Progress&) -> bool { throw std::runtime_error("the window is closed"); };
    const Request request{.deadline = Clock::now() + std::chrono::hours(1), .monitor = {.on_progress = fail}};
    CHECK_THROWS_WITH(static_cast<void>(world.uploader->acquire(bundle, {}, request)), "the window is closed");
    bytes.counted.go_on();
    CHECK_OK(world.uploader->acquire(bundle));
}

TEST_CASE("a request is not late if the device is full, and a stream still uses the memory that could be freed") {
    const auto fake = std::make_shared<FakeDevice>();
    FakeDevice::Stream stream;
    World world(100'000, fake);
    const Bytes before("before", 30'000);
    const Bytes bytes("t", 20'000);
    static_cast<void>(world.uploader->acquire(world.bundle(before), stream.native()));
    const Bundle bundle = world.bundle(bytes);
    fake->full = true;
    std::atomic<bool> over = false;
    std::thread thread([&] {
        CHECK_FAULT(world.uploader->acquire(bundle, {}, within(20)), Errc::deadline_passed);
        over = true;
    });
    for (int i = 0; i < 2000 && !over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(over);
    fake->full = false;
    stream.finish();
    thread.join();
    CHECK_OK(world.uploader->acquire(bundle));
}

TEST_CASE("a lease is not ready if one of its tensors failed, and wait() still waits for another one") {
    World world;
    const Bytes fails("fails", 1'000);
    const Bytes slow("slow", 1'000);
    const Bundle first = world.bundle(fails);
    const Bundle second = world.bundle(slow);
    const Bundle both = world.uploader->bundle(std::vector{fails.tensor, slow.tensor});
    fails.counted.fail_after(0);
    slow.counted.hold();
    Lease ticket = world.uploader->request(both);
    CHECK(soon([&] { return fails.counted.reads() == 1 && slow.counted.reads() == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK_FALSE(ticket.ready());
    slow.counted.go_on();
    CHECK(soon([&] { return ticket.ready(); }));
    CHECK_FAULT(ticket.wait(), Errc::io_error);
}

}  // namespace request_test
