// Random schedules of several threads on the stub of the CUDA driver: two uploaders, on one device or two, which are
// destroyed and made anew meanwhile, and streams that are held back at random. The stub finds work that is not in
// order; kernels see the right values.
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/device.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cuda_schedule_test {

using namespace safemap;
using namespace safemap::literals;
using safemap::drivers::CuResult;
using std::chrono::microseconds;

namespace {

constexpr std::uint64_t own_bytes = 20'000;  // memory of a thread, for fill()

/// The setting of a schedule.
struct Scene {
    bool two_devices = false;
    bool fails = false;  // allocations fail, and host memory is not locked
};

/// Bundles of one uploader at a time, and the checksums of their tensors.
struct Shelf {
    int ordinal;
    std::uint64_t budget;
    std::shared_ptr<Device> device = Device::open("cuda:" + std::to_string(ordinal));
    DeviceBudget memory = DeviceBudget(device, {budget, 12'288});
    std::deque<Bytes> stored = {};
    std::vector<std::vector<LazyTensor>> parts = {};
    std::vector<std::vector<std::uint64_t>> sums = {};  // parallel to the parts and their tensors
    std::shared_mutex calls = {};                       // shared by calls of the uploader's members
    std::unique_ptr<Uploader> uploader = {};
    std::vector<Bundle> bundles = {};  // parallel to the parts
    std::mutex mutex = {};
    UploadOrder order = {};  // guarded by the mutex; its uploader may have ended

    Shelf(StubCuda& stub, int on, std::uint64_t bytes, std::vector<std::uint64_t> sizes) : ordinal(on), budget(bytes) {
        for (const std::uint64_t size : sizes) {
            for (int i = 0; i < 2; ++i) stored.emplace_back("t" + std::to_string(stored.size()), size);
            add(stub, {stored[stored.size() - 2].tensor, stored.back().tensor});
        }
        // Bundles whose tensors others own.
        add(stub, {stored[1].tensor, stored[2].tensor, stored[5].tensor});
        add(stub, {stored[6].tensor, stored[0].tensor});
        replace();
    }
    /// Makes an uploader. Returns the one before, which nobody calls any more.
    std::unique_ptr<Uploader> replace() {
        auto before =
            std::exchange(uploader, std::make_unique<Uploader>(memory, no_tensors(), UploadOptions{.readers = 2}));
        bundles.clear();
        for (const auto& tensors : parts) bundles.push_back(uploader->bundle(tensors));
        return before;
    }
    void add(StubCuda& stub, const std::vector<LazyTensor>& tensors) {
        parts.push_back(tensors);
        sums.emplace_back();
        for (const LazyTensor& tensor : tensors) sums.back().push_back(stub.checksum(value_of(tensor)));
    }
};

/// A kernel that was put into a stream, and the sum that it has to find.
struct Kernel {
    std::uint64_t found = 0;
    std::uint64_t expected = 0;
};

struct Stage {
    StubCuda& stub;
    const Scene scene;
    std::deque<Shelf> shelves = {};
    std::atomic<bool> over = false;
    std::mutex mutex;
    std::vector<void*> streams = {};  // used by the threads
    std::deque<Kernel> kernels = {};
    std::vector<std::string> surprises = {};
    std::atomic<int> acquired = 0;

    Stage(StubCuda& driver, const Scene& what) : stub(driver), scene(what) {
        // Small bundles share blocks under the first budget, not under the second.
        shelves.emplace_back(stub, 0, 1'300'000, std::vector<std::uint64_t>{5'000, 150'000, 150'000, 700, 220'000, 9});
        shelves.emplace_back(stub, what.two_devices ? 1 : 0, 400'000,
                             std::vector<std::uint64_t>{60'000, 500, 60'000, 80'000, 33'000});
    }
    void* make_stream(int ordinal) {
        const std::lock_guard lock(mutex);
        streams.push_back(stub.make_stream(ordinal));
        return streams.back();
    }
    void surprise(std::string text) {
        const std::lock_guard lock(mutex);
        surprises.push_back(std::move(text));
    }
    void read(void* stream, const void* address, std::uint64_t size, std::uint64_t expected) {
        Kernel* kernel = nullptr;
        {
            const std::lock_guard lock(mutex);
            kernel = &kernels.emplace_back(Kernel{0, expected});
        }
        if (!stub.kernel_read(stream, address, size, kernel->found)) surprise("a kernel has no memory");
    }
    void note(const Error& error) {
        const Errc code = error.code();
        const bool expected = code == Errc::budget_exceeded || code == Errc::deadline_passed ||
                              code == Errc::cancelled || (scene.fails && code == Errc::out_of_memory);
        if (!expected) surprise(error.what());
    }

    /// Holds streams of the threads and of the devices back, each for a short time, until the threads are over.
    void hold_streams(unsigned seed) {
        std::mt19937 random(seed);
        while (!over) {
            void* held = stub.stream(random() % (scene.two_devices ? 6 : 3));
            if (random() % 2 == 0) {
                const std::lock_guard lock(mutex);
                if (!streams.empty()) held = streams[random() % streams.size()];
            }
            stub.hold(held);
            std::this_thread::sleep_for(microseconds(random() % 2'000));
            stub.release(held);
            std::this_thread::sleep_for(microseconds(random() % 200));
        }
    }
};

/// One thread of a schedule.
class Player {
public:
    Player(Stage& stage, unsigned seed) : stage_(stage), random_(seed) {
        for (const Shelf& shelf : stage.shelves)
            for (int i = 0; i < 2; ++i) streams_.push_back(stage.make_stream(shelf.ordinal));
    }
    void act(int steps) {
        for (int step = 0; step < steps; ++step) {
            which_ = below(2);
            try {
                fail_something();
                act();
            } catch (const Error& error) {
                stage_.note(error);
            }
        }
        tickets_.clear();
        leases_.clear();
        for (Shelf& shelf : stage_.shelves) {
            const std::shared_lock calls(shelf.calls);
            shelf.uploader->wake();
        }
        for (void* const stream : streams_) stage_.stub.synchronize(stream);  // before memory of ours is freed
    }

private:
    struct Taken {
        std::size_t which;
        std::size_t number;
        Lease lease;
    };
    struct Asked {
        std::size_t which;
        std::size_t number;
        Lease ticket;
        std::stop_source stop;
    };

    std::size_t below(std::size_t n) { return random_() % n; }
    Shelf& shelf() { return stage_.shelves[which_]; }
    std::size_t any_bundle() { return below(shelf().bundles.size()); }
    void* stream() { return streams_[2 * which_ + below(2)]; }
    void* other_than(void* stream) {
        void* const first = streams_[2 * which_];
        return stream == first ? streams_[2 * which_ + 1] : first;
    }

    void act() {
        if (below(60) == 0) return replace();
        if (below(16) == 0) return answer();
        const std::shared_lock calls(shelf().calls);
        const std::size_t number = any_bundle();
        switch (below(16)) {
            case 0: return take_without_stream(number);
            case 1: return try_take(number);
            case 2: return ask(number);
            case 3:
            case 4: return shelf().uploader->prefetch(std::vector{shelf().bundles[number], any()});
            case 5: return shelf().uploader->evict(shelf().bundles[number]);
            case 6: return follow();
            case 7: return fill_own();
            case 8: return take_in_capture(number);
            case 9:
                if (!leases_.empty())
                    leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(below(leases_.size())));
                return;
            case 10:
                if (below(4) == 0) static_cast<void>(shelf().uploader->sleep());
                return shelf().uploader->wake();
            default: return take(number);
        }
    }
    /// Ends an uploader while others use its leases, requests and order.
    void replace() {
        std::unique_ptr<Uploader> before;
        {
            const std::lock_guard lock(shelf().calls);
            before = shelf().replace();
        }
    }
    Bundle any() { return shelf().bundles[any_bundle()]; }

    /// Returns a request with a priority, and sometimes with a deadline that may pass.
    Request any_request(std::stop_token stop = {}) {
        Request request{.priority = static_cast<int>(below(3)), .monitor = {.stop = std::move(stop)}};
        if (below(4) == 0) request.deadline = std::chrono::steady_clock::now() + microseconds(below(1'500));
        return request;
    }
    void take(std::size_t number) {
        void* const on = stream();
        use(number, shelf().uploader->acquire(shelf().bundles[number], NativeStream::cuda(on), any_request()), on);
    }
    void try_take(std::size_t number) {
        void* const on = stream();
        auto lease = shelf().uploader->try_acquire(shelf().bundles[number], NativeStream::cuda(on));
        if (lease) use(number, std::move(*lease), on);
    }
    /// Puts kernels into a stream that read the tensors, and ends the lease in one of several ways, or keeps it.
    void use(std::size_t number, Lease lease, void* on) {
        read(lease, number, on);
        switch (below(4)) {
            case 0: lease.release(NativeStream::cuda(on)); break;
            case 1: {
                void* const other = other_than(on);
                shelf().device->make_wait(NativeStream::cuda(other), *shelf().device->record(NativeStream::cuda(on)));
                read(lease, number, other);
                lease.release(NativeStream::cuda(other));
                break;
            }
            case 2:
                if (leases_.size() < 2) leases_.push_back({which_, number, std::move(lease)});
                break;
            default: break;  // destroyed
        }
    }
    void read(const Lease& lease, std::size_t number, void* on) {
        ++stage_.acquired;
        for (std::size_t i = 0; i < lease.tensors().size(); ++i) {
            const DeviceTensor& tensor = lease.tensors()[i];
            stage_.read(on, tensor.address(), tensor.nbytes(), shelf().sums[number][i]);
        }
    }
    /// The tensors are there for the host, and for a stream that waits for nothing.
    void take_without_stream(std::size_t number) {
        Lease lease = shelf().uploader->acquire(shelf().bundles[number], {}, any_request());
        for (std::size_t i = 0; i < lease.tensors().size(); ++i) {
            const auto bytes = read_back(*shelf().device, lease.tensors()[i]);
            if (stage_.stub.checksum(bytes) != shelf().sums[number][i]) stage_.surprise("the host reads a wrong value");
        }
        void* const on = stream();
        read(lease, number, on);
        lease.release(NativeStream::cuda(on));
    }
    /// The tensors are there even if the stream is no place in time, and the lease ends after the capture.
    void take_in_capture(std::size_t number) {
        void* const on = stage_.make_stream(shelf().ordinal);
        stage_.stub.begin_capture(on);
        const Request request = any_request();
        Lease lease;
        const auto error = error_of(
            [&] { lease = shelf().uploader->acquire(shelf().bundles[number], NativeStream::cuda(on), request); });
        if (!stage_.stub.end_capture(on)) stage_.surprise("a capture was broken");
        if (error) return stage_.note(*error);
        void* const later = stream();
        read(lease, number, later);
        lease.release(NativeStream::cuda(later));
    }
    void ask(std::size_t number) {
        if (tickets_.size() > 2) return;
        Asked asked{which_, number, {}, {}};
        const bool stops = below(3) == 0;
        const Request request = any_request(stops ? asked.stop.get_token() : std::stop_token());
        asked.ticket = shelf().uploader->request(shelf().bundles[number], request);
        tickets_.push_back(std::move(asked));
    }
    void answer() {
        if (tickets_.empty()) return;
        std::swap(tickets_[below(tickets_.size())], tickets_.back());
        Asked asked = std::move(tickets_.back());
        tickets_.pop_back();
        which_ = asked.which;
        if (below(4) == 0) return asked.ticket.release();
        if (below(4) == 0) asked.stop.request_stop();
        void* const on = stream();
        asked.ticket.wait(NativeStream::cuda(on));
        use(asked.number, std::move(asked.ticket), on);
    }
    void follow() {
        std::vector<Bundle> bundles;
        if (below(3) > 0)
            for (std::size_t i = 2 + below(6); i > 0; --i) bundles.push_back(any());
        const std::lock_guard lock(shelf().mutex);
        shelf().order.end();
        if (bundles.empty()) return;
        shelf().order = below(3) > 0 ? shelf().uploader->follow(bundles) : shelf().uploader->follow_once(bundles);
    }
    /// Fills memory that kernels of the stream still read, and reads it in the other stream.
    void fill_own() {
        auto& memory = own_[which_];
        if (!memory) memory = shelf().device->allocate(own_bytes);
        const Bytes& bytes = values_.emplace_back("own" + std::to_string(below(50)), own_bytes / 2);
        const std::vector<FillTarget> targets = {{bytes.tensor, memory->handle(), own_bytes, 0},
                                                 {bytes.tensor, memory->handle(), own_bytes, own_bytes / 2}};
        void*& user = users_[which_];
        if (user == nullptr) user = stream();
        const auto filled = shelf().uploader->fill(targets, NativeStream::cuda(user));
        user = other_than(user);
        shelf().device->make_wait(NativeStream::cuda(user), *filled);
        const std::uint64_t sum = stage_.stub.checksum(value_of(bytes.tensor));
        for (const FillTarget& target : targets)
            stage_.read(user, static_cast<std::byte*>(target.address) + target.offset, own_bytes / 2, sum);
    }
    void fail_something() {
        if (!stage_.scene.fails || below(8) != 0) return;
        const std::size_t first = 1 + below(3);
        // An allocation asks four times.
        for (std::size_t i = 0; i < 4; ++i)
            stage_.stub.fail_nth("cuMemAllocFromPoolAsync", first + i, CuResult::out_of_memory);
        stage_.stub.fail_nth("cuMemHostRegister_v2", 1, CuResult::not_permitted);
    }

    Stage& stage_;
    std::mt19937 random_;
    std::size_t which_ = 0;       // the uploader of this step
    std::vector<void*> streams_;  // two of each uploader
    std::deque<Bytes> values_;    // sources of fill()
    std::shared_ptr<DeviceMemory> own_[2] = {};
    void* users_[2] = {};  // the streams that read own memory
    std::vector<Taken> leases_;
    std::vector<Asked> tickets_;
};

/// Acquires each bundle alone: no lease was left behind.
void acquire_each(Stage& stage) {
    for (Shelf& shelf : stage.shelves) {
        shelf.order.end();
        for (const Bundle& bundle : shelf.bundles) {
            // The fault of a prefetch may still be there, once for each bundle that owns the tensors.
            for (int i = 0; stage.scene.fails && i < 3; ++i)
                static_cast<void>(error_of([&] { static_cast<void>(shelf.uploader->acquire(bundle)); }));
            CHECK_OK(shelf.uploader->acquire(bundle));
        }
        CHECK(shelf.uploader->stats().peak_device_bytes <= shelf.budget);
    }
}

/// Destroys the uploaders while a stream that used a lease is held, another lease is alive, and a ticket is open.
void end_uploaders(Stage& stage) {
    for (Shelf& shelf : stage.shelves) {
        void* const stream = stage.make_stream(shelf.ordinal);
        stage.stub.hold(stream);
        {
            const Lease used = shelf.uploader->acquire(shelf.bundles[2], NativeStream::cuda(stream));
            const DeviceTensor& tensor = used.tensors()[0];
            stage.read(stream, tensor.address(), tensor.nbytes(), shelf.sums[2][0]);
        }
        Lease late = shelf.uploader->acquire(shelf.bundles[1], NativeStream::cuda(stream));
        Lease ticket = shelf.uploader->request(shelf.bundles[0]);
        std::thread releases([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            stage.stub.release(stream);
        });
        shelf.uploader.reset();
        const DeviceTensor& tensor = late.tensors()[1];
        stage.read(stream, tensor.address(), tensor.nbytes(), shelf.sums[1][1]);
        releases.join();
    }
}

void play(const Scene& scene, unsigned seed) {
    CAPTURE(seed);
    StubCuda stub;
    if (scene.two_devices) stub.set("devices", 2);
    stub.set("lag", std::vector<std::uint64_t>{0, 3, 50}[seed % 3]);
    {
        Stage stage(stub, scene);
        std::vector<std::thread> threads;
        const unsigned count = 3 + seed % 2;
        for (unsigned t = 0; t < count; ++t) threads.emplace_back([&, t] { Player(stage, seed * 100 + t).act(60); });
        std::thread holds([&] { stage.hold_streams(seed); });
        for (std::thread& thread : threads) thread.join();
        stage.over = true;
        holds.join();
        for (const std::string& surprise : stage.surprises) FAIL_CHECK(surprise);
        CHECK(stage.acquired.load() > 0);
        std::uint64_t most = count * 2 * own_bytes;
        for (const Shelf& shelf : stage.shelves) most += shelf.budget;
        CHECK(stub.get("peak_memory") <= most);
        for (int i = 0; scene.fails && i < 20; ++i) {  // calls that are still to fail
            const auto memory = error_of([&] { static_cast<void>(stage.shelves[0].device->allocate(1)); });
        }
        acquire_each(stage);
        end_uploaders(stage);
        for (void* const stream : stage.streams) stub.synchronize(stream);
        std::size_t wrong = 0;
        for (const Kernel& kernel : stage.kernels) wrong += kernel.found != kernel.expected ? 1 : 0;
        CHECK(wrong == 0);
    }
    CHECK(stub.take_findings() == "");
    CHECK(stub.live() == 0);
    CHECK(stub.get("live_memory") == 0);
}

void play_all(const Scene& scene) {
    const unsigned first = soak::seed(0) % 1'000'000;
    for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(240, 16)); ++i) play(scene, first + i);
}

}  // namespace

TEST_CASE("random schedules on streams that are held back") { play_all({}); }

TEST_CASE("random schedules on two CUDA devices") {
    if (needs_the_stub(StubCuda(), "it has two devices")) return;
    play_all({.two_devices = true});
}

TEST_CASE("random schedules with CUDA memory that is refused") { play_all({.fails = true}); }

}  // namespace cuda_schedule_test
