// Tests how a cache orders its copies and the kernels of callers where threads meet: leases that end at the same time,
// requests that give up, and streams that are captured. The stub of the CUDA driver finds work that is not in order.
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <safemap/uploader.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace cuda_order_test {

using namespace std::chrono_literals;
using namespace safemap;
using namespace safemap::literals;

namespace {

using Clock = std::chrono::steady_clock;

/// An uploader on the stub, with bundles of one tensor each.
struct Ground {
    StubCuda stub;
    std::vector<std::unique_ptr<Bytes>> stored = {};
    std::optional<Uploader> uploader = {};

    explicit Ground(std::uint64_t budget) {
        uploader.emplace(Device::open("cuda"), no_tensors(), UploadOptions{.device_budget = budget});
    }
    Bundle bundle(std::uint64_t size) {
        stored.push_back(std::make_unique<Bytes>("t" + std::to_string(stored.size()), size));
        return uploader->bundle(std::vector{stored.back()->tensor});
    }
    /// Puts a kernel into a stream that reads the first tensor of a lease.
    void read(const Lease& lease, void* stream) {
        const DeviceTensor& tensor = lease.tensors()[0];
        CHECK(stub.kernel_read(stream, tensor.address(), tensor.nbytes(), sum));
    }
    std::uint64_t sum = 0;
};

/// A CUDA device whose first record() of a stream of a caller takes long, while other threads go on.
class SlowRecord final : public Device {
public:
    const std::string& name() const noexcept override { return real_->name(); }
    std::uint64_t free_memory() const override { return real_->free_memory(); }
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) override { return real_->allocate(size); }
    std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) override {
        return real_->allocate_staging(size);
    }
    DeviceQueue& queue(Lane lane) override { return real_->queue(lane); }
    void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) override {
        real_->copy_to_host(to, from, offset);
    }
    void make_wait(NativeStream stream, const DeviceEvent& event) override { real_->make_wait(stream, event); }
    std::shared_ptr<DeviceEvent> record(NativeStream stream) override {
        auto event = real_->record(stream);
        if (!recorded.exchange(true)) {
            const auto until = Clock::now() + 200ms;
            while (!released_twice && Clock::now() < until) std::this_thread::sleep_for(1ms);
        }
        return event;
    }
    bool is_capturing(NativeStream stream) const override { return real_->is_capturing(stream); }

    std::atomic<bool> recorded = false;
    std::atomic<bool> released_twice = false;

private:
    const std::shared_ptr<Device> real_ = Device::open("cuda");
};

}  // namespace

TEST_CASE("two threads that release leases on one stream leave the later fence") {
    StubCuda stub;
    const auto device = std::make_shared<SlowRecord>();
    Bytes first("first", 60'000);
    Bytes second("second", 60'000);
    std::uint64_t sums[2] = {};
    {
        const CacheFixture cache(device, 60'000);
        const BundlePtr a = cache.bundle(first.tensor);
        void* const stream = stub.make_stream();
        stub.hold(stream);
        Held one = cache.acquire(a, NativeStream::cuda(stream));
        Held two = cache.acquire(a, NativeStream::cuda(stream));
        std::thread other([&] { one.reset(); });
        CHECK(soon([&] { return device->recorded.load(); }));
        CHECK(stub.kernel_read(stream, two[0].address(), 60'000, sums[0]));
        two.reset();
        device->released_twice = true;
        other.join();
        void* const next = stub.make_stream();
        const Held held = cache.acquire(cache.bundle(second.tensor), NativeStream::cuda(next));
        CHECK(stub.kernel_read(next, held[0].address(), 60'000, sums[1]));
        stub.release(stream);
        stub.synchronize(next);
    }
    CHECK(sums[0] == stub.checksum(value_of(first.tensor)));
    CHECK(sums[1] == stub.checksum(value_of(second.tensor)));
    CHECK(stub.take_findings() == "");
}

TEST_CASE("the default streams of two threads are two streams, though they have one handle") {
    Ground ground(60'000);
    void* const per_thread = reinterpret_cast<void*>(2);
    const Bundle a = ground.bundle(60'000);
    const Bundle b = ground.bundle(60'000);
    const auto use = [&] { ground.read(ground.uploader->acquire(a, NativeStream::cuda(per_thread)), per_thread); };
    std::atomic<bool> used = false;
    std::atomic<bool> goes_on = false;
    std::thread slow([&] {
        ground.stub.hold(per_thread);
        use();
        used = true;
        used.notify_all();
        goes_on.wait(false);
        ground.stub.release(per_thread);
    });
    used.wait(false);
    std::thread(use).join();
    void* const stream = ground.stub.make_stream();
    ground.read(ground.uploader->acquire(b, NativeStream::cuda(stream)), stream);
    goes_on = true;
    goes_on.notify_all();
    slow.join();
    ground.stub.synchronize(stream);
    CHECK(ground.stub.take_findings() == "");
}

TEST_CASE("an acquire in a capture that is late leaves no lease") {
    Ground ground(100'000);
    void* const stream = ground.stub.make_stream();
    const Bundle a = ground.bundle(60'000);
    const Bundle b = ground.bundle(60'000);
    ground.stub.hold(ground.stub.stream(0));
    ground.stub.begin_capture(stream);
    const auto acquire = [&] {
        static_cast<void>(ground.uploader->acquire(a, NativeStream::cuda(stream), {.deadline = Clock::now() + 300ms}));
    };
    CHECK_FAULT(acquire(), Errc::deadline_passed);
    CHECK(ground.stub.end_capture(stream));
    ground.stub.release(ground.stub.stream(0));
    CHECK_OK(ground.uploader->acquire(b));
    CHECK(ground.stub.take_findings() == "");
}

TEST_CASE("tensors that were leased in a capture stay without a handle of their bundle") {
    Ground ground(130'000);
    void* const stream = ground.stub.make_stream();
    const void* address = nullptr;
    {
        const Bundle a = ground.bundle(60'000);
        ground.stub.begin_capture(stream);
        const Lease lease = ground.uploader->acquire(a, NativeStream::cuda(stream));
        address = lease.tensors()[0].address();
    }
    CHECK(ground.stub.end_capture(stream));
    const Bundle b = ground.bundle(60'000);
    const Bundle c = ground.bundle(60'000);
    {
        const Lease lease = ground.uploader->acquire(b);
        CHECK(lease.tensors()[0].address() != address);
        CHECK_FAULT(ground.uploader->acquire(c), Errc::budget_exceeded);
    }
    CHECK_OK(ground.uploader->acquire(c));
    const auto again = ground.uploader->try_acquire(ground.uploader->bundle(std::vector{ground.stored[0]->tensor}));
    REQUIRE(again);
    CHECK(again->tensors()[0].address() == address);
    ground.uploader.reset();
    CHECK(ground.stub.get("live_allocations") == 1);  // the last lease has it
    CHECK(ground.stub.take_findings() == "");
}

TEST_CASE("threads that want what another one gave up bring it once") {
    for (int round = 0; round < 10; ++round) {
        Ground ground(100'000);
        void* const stream = ground.stub.make_stream();
        const Bundle old = ground.bundle(60'000);
        const Bundle wanted = ground.bundle(70'000);
        ground.stub.hold(stream);
        ground.read(ground.uploader->acquire(old, NativeStream::cuda(stream)), stream);
        const auto acquire = [&](std::chrono::milliseconds time) {
            static_cast<void>(ground.uploader->acquire(wanted, {}, {.deadline = Clock::now() + time}));
        };
        std::thread early([&] { CHECK_FAULT(acquire(40ms), Errc::deadline_passed); });
        std::vector<std::thread> threads;
        for (int i = 0; i < 6; ++i)
            threads.emplace_back([&] {
                std::this_thread::sleep_for(15ms);
                CHECK_OK(acquire(5s));
            });
        early.join();
        std::this_thread::sleep_for(5ms);
        ground.stub.release(stream);
        for (std::thread& thread : threads) thread.join();
        CHECK(ground.uploader->stats().uploaded_bytes == 130'000);
        CHECK(ground.stub.take_findings() == "");
    }
}

TEST_CASE("two threads that want small tensors of one block both get it, though only one of them allocates it") {
    Ground ground(1_MiB);
    void* const stream = ground.stub.make_stream();
    const Bundle small = ground.bundle(16'000);  // so that the next block is of this size, too
    const Lease first = ground.uploader->acquire(small);
    const std::uint64_t block = 16'128;
    const Bundle old = ground.bundle(20'000);  // makes room for one block
    const Bundle rest = ground.bundle(1_MiB - 20'000 - block);
    const Lease second = ground.uploader->acquire(rest);
    const Bundle x = ground.bundle(300);
    const Bundle y = ground.bundle(300);
    const Bundle both = ground.uploader->bundle(std::vector{ground.stored[3]->tensor, ground.stored[4]->tensor});
    ground.stub.hold(stream);
    ground.read(ground.uploader->acquire(old, NativeStream::cuda(stream)), stream);
    std::thread early([&] {
        CHECK_FAULT(ground.uploader->acquire(both, {}, {.deadline = Clock::now() + 200ms}), Errc::deadline_passed);
    });
    std::vector<std::thread> threads;
    for (const Bundle& one : {x, y})
        threads.emplace_back([&, one] {
            std::this_thread::sleep_for(50ms);
            CHECK_OK(ground.uploader->acquire(one, {}, {.deadline = Clock::now() + 5s}));
        });
    early.join();
    std::this_thread::sleep_for(50ms);
    ground.stub.release(stream);
    for (std::thread& thread : threads) thread.join();
    CHECK(ground.stub.take_findings() == "");
}

namespace {

/// More prefetches than there are slabs, whose copies are held up. All readers have one of them.
struct HeldUp {
    HeldUp() {
        for (int i = 0; i < 6; ++i) tensors.push_back(std::make_unique<Bytes>("p" + std::to_string(i), 300'000));
        for (const auto& one : tensors) prefetched.push_back(cache.bundle(one->tensor));
        stub.hold(bulk());
        cache.prefetch(prefetched);
        CHECK(soon([&] { return stub.get("copies") == 2; }));
        std::this_thread::sleep_for(20ms);  // more readers wait for slabs
    }
    ~HeldUp() {
        release();
        cache.stop();
        CHECK(stub.take_findings() == "");
    }
    void* bulk() { return stub.stream(1); }
    void release() { stub.release(bulk()); }
    void acquire(const Bytes& one, const Request& request = {}) const {
        const Held held = cache.acquire(cache.bundle(one.tensor), {}, request);
        CHECK(read_back(*device, held[0]) == value_of(one.tensor));
    }

    StubCuda stub;
    std::shared_ptr<Device> device = Device::open("cuda");
    std::vector<std::unique_ptr<Bytes>> tensors;
    CacheFixture cache{device, {.device_budget = 10_MiB, .staging_bytes = 12_MiB, .readers = 4}};
    std::vector<BundlePtr> prefetched;
};

}  // namespace

TEST_CASE("what is acquired does not wait for prefetches whose copies are held up") {
    HeldUp all;
    for (const bool has_deadline : {false, true}) {
        CAPTURE(has_deadline);
        // With a deadline, readers bring it.
        const Bytes wanted("wanted", 300'000);
        Request request;
        if (has_deadline) request.deadline = Clock::now() + 10s;
        CHECK_OK(all.acquire(wanted, request));
        CHECK(all.cache.stats().peak_staging_bytes == 12_MiB);
    }
    all.release();
    for (const auto& one : all.tensors) CHECK_OK(all.acquire(*one));
}

TEST_CASE("a prefetch that waits for a slab gets that of demands when somebody waits for it") {
    HeldUp all;
    std::atomic<int> there = 0;
    std::vector<std::thread> threads;
    for (const auto& one : all.tensors)
        threads.emplace_back([&] {
            CHECK_OK(all.acquire(*one));
            ++there;
        });
    CHECK(soon([&] { return there == 4; }));  // the copies of two are queued
    std::this_thread::sleep_for(20ms);
    CHECK(there == 4);
    all.release();
    for (std::thread& thread : threads) thread.join();
}

TEST_CASE("readers that wait for a slab of fill bring what is demanded") {
    StubCuda stub;
    const auto device = Device::open("cuda");
    {
        const CacheFixture cache(device, {.device_budget = 10_MiB, .staging_bytes = 12_MiB, .readers = 2});
        const Bytes large("large", 60'000'000);
        const Bytes wanted("wanted", 300'000);
        const std::shared_ptr<DeviceMemory> memory = device->allocate(60'000'000);
        void* const stream = stub.make_stream();
        stub.hold(stream);
        std::thread fills([&] {
            cache.fill({{large.tensor, memory->handle(), 60'000'000}}, NativeStream::cuda(stream))->wait();
        });
        CHECK(soon([&] { return stub.get("copies") == 2; }));
        std::this_thread::sleep_for(20ms);  // the thread that fills and both readers wait
        Request request;
        request.deadline = Clock::now() + 10s;
        const auto bundle = cache.bundle(wanted.tensor);
        CHECK_OK(cache.acquire(bundle, {}, request));
        stub.release(stream);
        fills.join();
        std::vector<std::byte> bytes(60'000'000);
        device->copy_to_host(bytes, *memory, 0);
        CHECK(bytes == value_of(large.tensor));
    }
    CHECK(stub.take_findings() == "");
}

TEST_CASE("an order goes on when a request is for tensors that are there") {
    Ground ground(130'000);
    std::vector<Bundle> order;
    for (int i = 0; i < 3; ++i) order.push_back(ground.bundle(60'000));
    const UploadOrder followed = ground.uploader->follow_once(order);
    CHECK(soon([&] { return ground.uploader->stats().uploaded_bytes == 120'000; }));
    ground.uploader->request(order[0]).wait();
    Lease lease = ground.uploader->request(order[1]);
    lease.wait();
    CHECK(soon([&] { return ground.uploader->stats().uploaded_bytes == 180'000; }));
    CHECK(ground.stub.take_findings() == "");
}

TEST_CASE("a stop ends an acquire that waits for memory which a kernel still reads") {
    Ground ground(100'000);
    void* const stream = ground.stub.make_stream();
    const Bundle old = ground.bundle(60'000);
    const Bundle wanted = ground.bundle(70'000);
    ground.stub.hold(stream);
    ground.read(ground.uploader->acquire(old, NativeStream::cuda(stream)), stream);
    std::stop_source stop;
    std::atomic<bool> is_over = false;
    std::thread waits([&] {
        CHECK_FAULT(ground.uploader->acquire(wanted, {}, {.monitor = {.stop = stop.get_token()}}), Errc::cancelled);
        is_over = true;
    });
    std::this_thread::sleep_for(30ms);
    CHECK_FALSE(is_over.load());
    stop.request_stop();
    const auto until = Clock::now() + 5s;
    while (!is_over && Clock::now() < until) std::this_thread::sleep_for(1ms);
    CHECK(is_over.load());
    ground.stub.release(stream);
    waits.join();
    CHECK_OK(ground.uploader->acquire(wanted));
    CHECK(ground.stub.take_findings() == "");
}

TEST_CASE("what a hook puts behind the copies comes before the work of a lease") {
    StubCuda stub;
    const Bytes bytes("t", 60'000);
    std::uint64_t sums[2] = {};
    void* upload_stream = nullptr;
    const auto on_arrival = [&](NativeStream stream, std::span<const FillTarget> tensors) {
        upload_stream = stream.handle;
        stub.hold(upload_stream);
        CHECK(tensors.size() == 1);
        CHECK(tensors[0].tensor.name() == "t");
        CHECK(stub.kernel_read(upload_stream, tensors[0].address, tensors[0].size, sums[0]));
    };
    {
        Uploader uploader(Device::open("cuda"), no_tensors(), {.device_budget = 60'000, .on_arrival = on_arrival});
        const Bundle bundle = uploader.bundle(std::span(&bytes.tensor, 1));
        void* const stream = stub.make_stream();
        const Lease lease = uploader.acquire(bundle, NativeStream::cuda(stream));
        CHECK((stub.is_real() || !lease.ready()));
        CHECK(stub.kernel_read(stream, lease["t"].address(), 60'000, sums[1]));
        stub.release(upload_stream);
        stub.synchronize(stream);
        for (const std::uint64_t sum : sums) CHECK(sum == stub.checksum(value_of(bytes.tensor)));
    }
    CHECK(stub.take_findings() == "");
}

TEST_CASE("the work of a hook that throws is over before the memory is written again") {
    StubCuda stub;
    const Bytes bytes("t", 60'000);
    const Bytes other("other", 60'000);
    std::uint64_t sum = 0;
    bool fails = true;
    const auto on_arrival = [&](NativeStream stream, std::span<const FillTarget> tensors) {
        if (!fails) return;
        CHECK(stub.kernel_read(stream.handle, tensors[0].address, tensors[0].size, sum));
        throw std::runtime_error("no kernel for this");
    };
    {
        Uploader uploader(Device::open("cuda"), no_tensors(), {.device_budget = 60'000, .on_arrival = on_arrival});
        const Bundle bundle = uploader.bundle(std::span(&bytes.tensor, 1));
        CHECK_THROWS_WITH(static_cast<void>(uploader.acquire(bundle)), "no kernel for this");
        CHECK(uploader.stats().resident_bytes == 0);
        fails = false;
        static_cast<void>(uploader.acquire(uploader.bundle(std::span(&other.tensor, 1))));
        CHECK(sum == stub.checksum(value_of(bytes.tensor)));
        CHECK_OK(uploader.acquire(bundle));
    }
    CHECK(stub.take_findings() == "");
}

TEST_CASE("copies out of the host tier are in order with kernels, and their memory is free at the end") {
    StubCuda stub;
    std::vector<std::unique_ptr<Bytes>> stored;
    for (int i = 0; i < 4; ++i) stored.push_back(std::make_unique<Bytes>("t" + std::to_string(i), 600'000));
    std::vector<std::uint64_t> sums(40);
    {
        // One bundle at a time on the device, three in the tier.
        Uploader uploader(Device::open("cuda"), no_tensors(),
                          {.device_budget = 600'000, .staging_bytes = 64_KiB, .host_bytes = 1'800'000});
        std::vector<Bundle> bundles;
        for (const auto& one : stored) bundles.push_back(uploader.bundle(std::span(&one->tensor, 1)));
        void* const stream = stub.make_stream();
        for (std::size_t i = 0; i < sums.size(); ++i) {
            const Lease lease = uploader.acquire(bundles[i % 7 % 4], NativeStream::cuda(stream));
            CHECK(stub.kernel_read(stream, lease.tensors()[0].address(), 600'000, sums[i]));
        }
        stub.synchronize(stream);
        CHECK(uploader.stats().bytes_from_host >= 10 * 600'000);
        CHECK((stub.is_real() || stub.get("registered_bytes") >= 3 * 600'000));
    }
    for (std::size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == stub.checksum(value_of(stored[i % 7 % 4]->tensor)));
    CHECK((stub.is_real() || stub.get("live_registrations") == 0));
    CHECK(stub.take_findings() == "");
}

}  // namespace cuda_order_test
