// Tests uploads on a thread whose allocations fail: this program replaces operator new.
#include "device/cache.hpp"

#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device.hpp>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace safemap;
using device::Cache;

namespace {

/// The allocation of this thread that will fail, counted from 1 on; 0: none.
thread_local int failing = 0;

void* allocate_or_null(std::size_t size) noexcept {
    if (failing > 0 && --failing == 0) return nullptr;
    return std::malloc(size == 0 ? 1 : size);
}

/// The host with full memory. After the second error that it throws, the next allocation of the thread fails.
class FullDevice final : public Device {
public:
    const std::string& name() const noexcept override { return host_->name(); }
    std::uint64_t free_memory() const override { return host_->free_memory(); }
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t) override {
        Error error(Errc::out_of_memory, "the device is full");
        if (++calls_ == 2) failing = 1;
        throw std::move(error);
    }
    std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) override {
        return host_->allocate_staging(size);
    }
    DeviceQueue& queue(Lane lane) override { return host_->queue(lane); }
    void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) override {
        host_->copy_to_host(to, from, offset);
    }

private:
    const std::shared_ptr<Device> host_ = Device::open("host");
    int calls_ = 0;
};

/// Calls `act` again and again: the nth time, its nth allocation fails. Returns how often it threw before it succeeded.
template <class Act, class Check> int fail_each_allocation(Act&& act, Check&& check) {
    for (int nth = 1;; ++nth) {
        CAPTURE(nth);
        bool failed = false;
        failing = nth;
        try {
            act();
        } catch (const std::bad_alloc&) {
            failed = true;
        } catch (const Error& error) {
            failed = error.code() == Errc::out_of_memory;
        }
        const bool used = std::exchange(failing, 0) == 0;
        check();
        if (!used) {
            CHECK_FALSE(failed);
            return nth - 1;
        }
    }
}

/// Three tensors that fill most of a budget together: `a` and `b`, or `c`.
struct Three {
    const Bytes a = Bytes("a name that is too long to stand within a string", 30'000);
    const Bytes b = Bytes("another name that is too long for that", 20'000);
    const Bytes c = Bytes("the third name that is too long for that", 45'000);
    const std::shared_ptr<FakeDevice> fake = std::make_shared<FakeDevice>();
    CacheFixture cache;

    explicit Three(std::uint64_t budget, bool keeps = false, std::uint64_t host_bytes = 0)
        : cache(fake, {.device_budget = budget,
                       .staging_bytes = 8192,
                       .host_bytes = host_bytes,
                       .readers = 1,
                       .keep_addresses = keeps}) {}

    void check(const Bytes& one) const {
        const Held held = cache.acquire(one.tensor);
        CHECK(read_back(*fake, held[0]) == value_of(one.tensor));
    }
};

}  // namespace

void* operator new(std::size_t size) {
    if (void* const memory = allocate_or_null(size)) return memory;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate_or_null(size); }
// Not inlined: GCC would report a mismatch of free() with this operator new.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("the fault of a prefetch reaches acquire, even if there is no memory for the tensor's name") {
    const CacheFixture cache(std::make_shared<FullDevice>(), 100, 1);
    const Bytes bytes("a name that is too long to stand within a string", 100);
    cache.prefetch(bytes.tensor);
    CHECK(failing == 0);
    check_error(error_of([&] { cache.acquire(bytes.tensor); }), {Errc::out_of_memory}, {}, {.tensor = ""});
}

TEST_CASE("an acquire without memory throws, and leaves nothing leased or half uploaded") {
    for (const std::uint64_t budget : {std::uint64_t{50'000}, 1_MiB}) {
        CAPTURE(budget);
        const Three three(budget);
        const int failed = fail_each_allocation([&] { three.cache.acquire(three.a.tensor); },
                                                [&] {
                                                    three.check(three.a);
                                                    three.cache.evict(three.a.tensor);
                                                    CHECK(three.fake->allocated == 0);
                                                    CHECK(three.cache.stats().resident_bytes == 0);
                                                });
        CHECK(failed > 10);
        CHECK(three.fake->was_used_well());
    }
}

TEST_CASE("an acquire without memory evicts and cancels completely or not at all") {
    const Three three(50'000);
    const Bytes held("held", 1);
    const int failed = fail_each_allocation([&] { three.cache.acquire(three.c.tensor); },
                                            [&] {
                                                // `c` arrived or not; then `a` and `b` come back: one is resident, one
                                                // on its way.
                                                three.check(three.c);
                                                three.check(three.a);
                                                three.cache.prefetch(three.b.tensor);
                                            });
    CHECK(failed > 10);
    three.check(three.b);
    CHECK(three.fake->peak <= 50'000);
    CHECK(three.fake->was_used_well());
}

TEST_CASE(
    "an upload without memory for its picture goes through slabs, or throws, and leaves the host tier as it was") {
    for (int nth = 1; nth < 60; ++nth) {
        CAPTURE(nth);
        const Three three(50'000, false, 50'000);
        three.check(three.a);
        three.check(three.b);
        failing = nth;
        try {
            three.cache.acquire(three.c.tensor);
        } catch (const std::bad_alloc&) {
        }
        failing = 0;
        for (int round = 0; round < 3; ++round)
            for (const Bytes* const one : {&three.c, &three.a, &three.b}) three.check(*one);
        const DeviceBudgetStats stats = three.cache.view()->cache->stats();
        CHECK(stats.peak_host_bytes <= 50'000);
        CHECK(stats.host_bytes == *three.fake->live_staging - stats.peak_staging_bytes);
        CHECK(three.fake->was_used_well());
    }
}

TEST_CASE("a prefetch without memory throws or fails later, and the tensor can be acquired again") {
    const Three three(50'000);
    const int failed = fail_each_allocation(
        [&] {
            three.cache.prefetch({three.a.tensor, three.b.tensor});
        },
        [&] {
            for (const Bytes* one : {&three.a, &three.b}) {
                // The fault of the prefetch is thrown once.
                try {
                    three.cache.acquire(one->tensor);
                } catch (const std::bad_alloc&) {
                } catch (const Error& error) {
                    CHECK(error.code() == Errc::out_of_memory);
                }
                three.check(*one);
            }
            three.check(three.c);
        });
    CHECK(failed > 10);
    CHECK(three.fake->peak <= 50'000);
    CHECK(three.fake->was_used_well());
}

TEST_CASE("a bundle that cannot be made for want of memory leaves no owner behind") {
    const Three three(100'000);
    const Held owner = three.cache.acquire(three.c.tensor);
    const int failed = fail_each_allocation(
        [&] {
            three.cache.bundle({three.c.tensor.renamed("tied"), three.b.tensor, three.a.tensor});
        },
        [&] {
            const BundlePtr alone = three.cache.bundle(three.a.tensor);
            CHECK(alone->device_bytes == 30'000);
            CHECK(alone->groups.size() == 1);
        });
    CHECK(failed > 10);
}

TEST_CASE("a sleep without memory throws, or takes all bundles, and they come back where they were") {
    const Three three(100'000, true);
    const void* const a = three.cache.acquire(three.a.tensor)[0].memory()->handle();
    const void* const b = three.cache.acquire(three.b.tensor)[0].memory()->handle();
    const int failed = fail_each_allocation([&] { static_cast<void>(three.cache.sleep()); },
                                            [&] {
                                                CHECK(three.cache.acquire(three.a.tensor)[0].memory()->handle() == a);
                                                CHECK(three.cache.acquire(three.b.tensor)[0].memory()->handle() == b);
                                                three.check(three.a);
                                                three.check(three.b);
                                            });
    CHECK(failed > 3);
    CHECK(three.fake->peak <= 100'000);
    CHECK(three.cache.sleep() == 0);
    CHECK(three.fake->allocated == 0);
    CHECK(three.fake->was_used_well());
}

TEST_CASE("an evict without memory throws, or evicts") {
    const Three three(100'000);
    const int failed = fail_each_allocation(
        [&] {
            three.cache.evict({three.a.tensor, three.b.tensor});
        },
        [&] {
            three.check(three.a);
            three.check(three.b);
        });
    CHECK(failed >= 1);
    CHECK(three.fake->was_used_well());
}

TEST_CASE("an uploader, an order and a request end without memory") {
    for (int nth = 1; nth <= 4; ++nth) {
        for (const char* const what : {"uploader", "order", "request"}) {
            CAPTURE(nth);
            CAPTURE(what);
            Three three(100'000);
            three.a.counted.slow(2000);
            std::vector<BundlePtr> bundles = {three.cache.bundle(three.a.tensor), three.cache.bundle(three.b.tensor)};
            const auto view = three.cache.view();
            Cache& cache = *view->cache;
            if (what == std::string("order")) {
                auto plan = cache.follow(*view, bundles, false);
                bundles.clear();
                failing = nth;
                cache.unfollow(std::move(plan));
            } else if (what == std::string("request")) {
                const auto uploads = cache.try_request(*bundles[0], {});
                REQUIRE(uploads);
                failing = nth;
                cache.cancel_request(*bundles[0], *uploads);
            } else {
                three.cache.prefetch(bundles);
            }
            if (what == std::string("uploader")) failing = nth;
            three.cache.stop();
            failing = 0;
            bundles.clear();
            CHECK(three.fake->allocated == 0);
            CHECK(three.fake->was_used_well());
        }
    }
}

TEST_CASE("an order, a request, a fill, sleep and wake without memory throw, and can be tried again") {
    const Three three(50'000);
    const auto view = three.cache.view();
    Cache& cache = *view->cache;
    const std::vector<BundlePtr> bundles = {three.cache.bundle(three.a.tensor), three.cache.bundle(three.b.tensor),
                                            three.cache.bundle(three.c.tensor)};
    const auto all_is_well = [&] {
        // Faults of uploads that nobody waited for are thrown once.
        for (const BundlePtr& bundle : bundles) {
            try {
                three.cache.acquire(bundle);
            } catch (const std::bad_alloc&) {
            } catch (const Error& error) {
                CHECK(error.code() == Errc::out_of_memory);
            }
        }
        for (const Bytes* const one : {&three.a, &three.b, &three.c}) three.check(*one);
    };
    std::shared_ptr<device::Plan> plan;
    const std::vector<BundlePtr> order = {bundles[0], bundles[1]};
    CHECK(fail_each_allocation([&] { plan = cache.follow(*view, order, true); },
                               [&] {
                                   if (plan) cache.unfollow(std::move(plan));
                                   CHECK(view->plan == nullptr);
                                   all_is_well();
                               }) > 5);
    CHECK(fail_each_allocation(
              [&] {
                  const auto uploads = cache.try_request(*bundles[0], {});
                  if (!uploads) return;
                  cache.end_request(*bundles[0], {}, *uploads);
                  const Held ends(bundles[0]);
              },
              all_is_well) > 5);
    const auto memory = three.fake->allocate(30'000);
    CHECK(fail_each_allocation(
              [&] {
                  const FillTarget target{three.a.tensor, memory->handle(), 30'000};
                  cache.fill(*view, std::span(&target, 1), {})->wait();
              },
              all_is_well) > 5);
    CHECK(fail_each_allocation([&] { three.cache.sleep(); },
                               [&] {
                                   three.cache.wake();
                                   all_is_well();
                               }) > 0);
    three.cache.sleep();
    CHECK(fail_each_allocation([&] { three.cache.wake(); },
                               [&] {
                                   all_is_well();
                                   three.cache.sleep();
                               }) > 0);
    CHECK(three.fake->peak <= 80'000);
    CHECK(three.fake->was_used_well());
}
