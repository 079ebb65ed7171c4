// Random schedules of several threads on one cache, or on caches that share a budget: values are always right, and the
// budget is never exceeded.

#include "device/schedule.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/device.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace schedule_test {

using namespace safemap;
using device::Cache;

namespace {

/// The rows of the one tensor that is transposed: as many as columns.
std::uint64_t rows_of_square(std::uint64_t budget) { return budget < 1_MiB ? 200 : 700; }

/// Tensors, a tied one and a transposed one among them. Their values are parallel to them.
struct World : ScheduleGround {
    std::vector<LazyTensor> tensors;
    std::uint64_t square = rows_of_square(schedule.budget);

    World(const Schedule& wanted, unsigned seed) : ScheduleGround(wanted, seed) {
        const std::uint64_t budget = schedule.budget;
        // With the larger budget, the first of these share blocks.
        for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{100}, std::uint64_t{255},
                                         std::uint64_t{4096}, std::uint64_t{5000}, budget / 10, budget / 4, budget / 3,
                                         budget / 3 - 64, budget / 2, square * square, budget, budget + 1})
            tensors.push_back(add(size).tensor);
        // A tied tensor, and a view that is read in tiles.
        tensors.push_back(tensors[4].renamed("tied"));
        values.push_back(values[4]);
        tensors.emplace_back("transposed", tensors[11].stored(),
                             StridedView{{square, square}, {1, std::int64_t(square)}, 0});
        values.emplace_back();
        for (std::uint64_t i = 0; i < square * square; ++i)
            values.back().push_back(values[11][i / square + i % square * square]);
    }
};

/// A handle of some tensors of a world.
struct Handle {
    std::vector<std::size_t> numbers;
    BundlePtr bundle;
};

struct Leased {
    std::vector<std::size_t> numbers;
    Held held;
};

/// One thread of a schedule.
class Actor {
public:
    Actor(World& world, CacheFixture& cache, unsigned seed, Violations& violations)
        : world_(world), cache_(cache), violations_(violations), random_(seed) {}

    ~Actor() {
        for (const Requested& one : requests_)
            one.handle.bundle->view->cache->cancel_request(*one.handle.bundle, one.uploads);
    }
    Actor(const Actor&) = delete;
    Actor& operator=(const Actor&) = delete;

    void act(int steps) {
        for (int step = 0; step < steps; ++step) {
            world_.fail_something(random_);
            switch (random_() % 10) {
                case 0:
                case 1: acquire(some()); break;
                case 2: acquire(known()); break;
                case 3: try_acquire(known()); break;
                case 4: prefetch(); break;
                case 5: cache_.evict(known().bundle); break;
                case 6: drop(handles_); break;
                case 7: request(known()); break;
                case 8: end_request(); break;
                default: drop(leases_);
            }
            // A lease still has its values, whatever other threads did.
            if (!leases_.empty()) check_values(leases_[random_() % leases_.size()]);
            violations_.over_budget += world_.over_budget();
        }
    }

private:
    Handle some() {
        Handle chosen;
        std::vector<LazyTensor> tensors;
        const std::size_t count = 1 + random_() % 3;
        for (std::size_t i = 0; i < count; ++i) {
            chosen.numbers.push_back(random_() % world_.tensors.size());
            tensors.push_back(world_.tensors[chosen.numbers.back()]);
        }
        chosen.bundle = cache_.bundle(std::move(tensors));
        return chosen;
    }
    /// Returns a handle that this thread keeps.
    Handle known() {
        if (handles_.size() < 4) handles_.push_back(some());
        return handles_[random_() % handles_.size()];
    }
    template <class T> void drop(std::vector<T>& from) {
        if (!from.empty()) from.erase(from.begin() + static_cast<std::ptrdiff_t>(random_() % from.size()));
    }
    void acquire(Handle handle) {
        try {
            hold({std::move(handle.numbers), cache_.acquire(handle.bundle, {}, any_request())});
            ++violations_.acquired;
        } catch (const Error& error) {
            note(error);
        }
    }
    void note(const Error& error) {
        if (error.code() == Errc::budget_exceeded) ++violations_.refused;
        else if (error.code() == Errc::deadline_passed) ++violations_.late;
        else if (world_.is_expected(error)) ++violations_.failed;
        else violations_.add_strange(error);
    }
    /// Returns a request with a priority, and sometimes with a deadline that may pass.
    Request any_request() {
        Request request{.priority = static_cast<int>(random_() % 3)};
        if (random_() % 4 == 0)
            request.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(random_() % 500);
        return request;
    }
    void request(Handle handle) {
        try {
            Requested requested{std::move(handle), any_request(), {}};
            const BundlePtr& bundle = requested.handle.bundle;
            auto uploads = bundle->view->cache->try_request(*bundle, requested.request);
            if (!uploads) return;  // a small tensor is in the way
            requested.uploads = *std::move(uploads);
            requests_.push_back(std::move(requested));
        } catch (const Error& error) {
            note(error);
        }
    }
    /// Waits for what was requested before, or cancels it.
    void end_request() {
        if (requests_.empty()) return;
        std::swap(requests_[random_() % requests_.size()], requests_.back());
        Requested requested = std::move(requests_.back());
        requests_.pop_back();
        const BundlePtr& bundle = requested.handle.bundle;
        if (random_() % 3 == 0) return bundle->view->cache->cancel_request(*bundle, requested.uploads);
        try {
            bundle->view->cache->end_request(*bundle, requested.request, requested.uploads);
            Held held(bundle);
            bundle->view->cache->order(*bundle, {}, requested.request);
            hold({std::move(requested.handle.numbers), std::move(held)});
            ++violations_.acquired;
        } catch (const Error& error) {
            note(error);
        }
    }
    void try_acquire(const Handle& handle) {
        if (auto held = cache_.try_acquire(handle.bundle)) hold({handle.numbers, std::move(*held)});
    }
    void hold(Leased leased) {
        check_values(leased);
        if (random_() % 2 == 0) leases_.push_back(std::move(leased));
    }
    void prefetch() {
        if (random_() % 2 == 0) {
            std::vector<LazyTensor> tensors;
            for (int i = 0; i < 3; ++i) tensors.push_back(world_.tensors[random_() % world_.tensors.size()]);
            cache_.prefetch(tensors);
        } else {
            const std::vector<BundlePtr> bundles = {known().bundle, known().bundle, some().bundle};
            cache_.prefetch(bundles);
        }
    }
    void check_values(const Leased& leased) {
        for (std::size_t i = 0; i < leased.numbers.size(); ++i) {
            const DeviceTensor& tensor = leased.held[i];
            if (tensor.name() != world_.tensors[leased.numbers[i]].name()) ++violations_.wrong_values;
            if (read_back(*world_.device, tensor) != world_.values[leased.numbers[i]]) ++violations_.wrong_values;
        }
    }

    World& world_;
    CacheFixture& cache_;
    Violations& violations_;
    std::mt19937 random_;
    std::vector<Handle> handles_;
    std::vector<Leased> leases_;
    struct Requested {
        Handle handle;
        Request request;
        device::Uploads uploads;
    };
    std::vector<Requested> requests_;
};

/// Acquires each tensor alone. Nothing is leased, so that each one fits.
void acquire_each(const World& world, const CacheFixture& cache) {
    cache.drop_kept();
    for (std::size_t i = 0; i < world.tensors.size(); ++i) {
        const LazyTensor& tensor = world.tensors[i];
        CAPTURE(tensor.name());
        if (tensor.nbytes() > world.schedule.budget) continue;
        // A fault of a prefetch may still be pending; it is thrown once.
        if (const auto fault = error_of([&] { cache.acquire(tensor); })) {
            INFO(std::string(fault->what()));
            CHECK(fault->code() == (world.schedule.fails == Fails::allocations ? Errc::out_of_memory : Errc::io_error));
            CHECK(world.schedule.fails != Fails::nothing);
        }
        CHECK_OK(cache.acquire(tensor));
        const Held held = cache.acquire(tensor);
        CHECK(read_back(*world.device, held[0]) == world.values[i]);
    }
}

void run_schedule(const Schedule& schedule, unsigned seed) {
    CAPTURE(seed);
    const Watchdog watchdog(seed);
    World world(schedule, seed);
    Violations violations;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back(
            [&, t] { Actor(world, *world.caches[t % world.caches.size()], seed * 100 + t, violations).act(60); });
    for (std::thread& thread : threads) thread.join();

    violations.check();

    world.stop_failing();
    // Tensors of the others make way each time.
    for (const auto& cache : world.caches) acquire_each(world, *cache);
    for (const auto& cache : world.caches) {
        const auto stats = cache->stats();
        CHECK(stats.peak_device_bytes <= schedule.budget);
        CHECK(stats.bytes_pread + stats.bytes_from_host >= stats.uploaded_bytes);
    }
    CHECK(world.over_budget() == 0);
    world.caches.clear();
    CHECK(world.shared->stats().device_bytes == 0);
    if (!world.fake) return;
    const std::uint64_t allocations = world.fake->allocations;
    CHECK(world.fake->peak <= schedule.budget);
    CHECK(world.fake->allocated == 0);
    CAPTURE(world.fake->staging_was_touched.load());
    CAPTURE(world.fake->copied_outside.load());
    CAPTURE(world.fake->freed_during_copy.load());
    CAPTURE(world.fake->used_while_mapped.load());
    CHECK(world.fake->was_used_well());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(world.fake->allocations == allocations);
}

Schedule with_budget(Schedule schedule, std::uint64_t budget) {
    schedule.budget = budget;
    return schedule;
}

/// Runs schedules with a small budget, and with one in which small groups share blocks.
void run_schedules(const Schedule& wanted) {
    const unsigned first = soak::seed(0) % 1'000'000;
    for (const std::uint64_t budget : {std::uint64_t{40'000}, 2_MiB}) {
        CAPTURE(budget);
        for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(wanted.caches > 1 || wanted.mapped ? 4 : 8)); ++i)
            run_schedule(with_budget(wanted, budget), first + i);
    }
}

}  // namespace

TEST_CASE("random schedules on the host") { run_schedules({}); }

TEST_CASE("random schedules through staging buffers") { run_schedules({.staged = true}); }

TEST_CASE("random schedules in mapped memory") { run_schedules({.mapped = true}); }

TEST_CASE("random schedules with reads that fail on the host") { run_schedules({.fails = Fails::reads}); }

TEST_CASE("random schedules with reads that fail through staging buffers") {
    run_schedules({.staged = true, .fails = Fails::reads});
}

TEST_CASE("random schedules with copies that fail") { run_schedules({.staged = true, .fails = Fails::copies}); }

TEST_CASE("random schedules with allocations that fail") {
    run_schedules({.staged = true, .fails = Fails::allocations});
}

TEST_CASE("random schedules in mapped memory, with reads, mappings and allocations that fail") {
    for (const Fails fails : {Fails::reads, Fails::copies, Fails::allocations})
        run_schedules({.mapped = true, .fails = fails});
}

TEST_CASE("random schedules on caches that share a budget") {
    run_schedules({.caches = 2});
    run_schedules({.staged = true, .caches = 3});
}

TEST_CASE("random schedules on caches that share a budget, with reads, copies and allocations that fail") {
    for (const Fails fails : {Fails::reads, Fails::copies, Fails::allocations})
        run_schedules({.staged = true, .fails = fails, .caches = 2});
}

TEST_CASE("kept tensors arrive again only after they were evicted") {
    for (unsigned seed = 0; seed < 8; ++seed) {
        CAPTURE(seed);
        const CacheFixture cache(Device::open("host"), 500, 2);
        std::vector<Bytes> tensors;
        for (int i = 0; i < 10; ++i) tensors.emplace_back("t" + std::to_string(i), 100);
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 3; ++t)
            threads.emplace_back([&, t] {
                std::mt19937 random(seed * 10 + t);
                for (int step = 0; step < 200; ++step) {
                    const LazyTensor& tensor = tensors[random() % tensors.size()].tensor;
                    if (random() % 3 == 0) cache.prefetch(tensor);
                    else cache.acquire(tensor);
                }
            });
        for (std::thread& thread : threads) thread.join();
        const auto stats = cache.stats();
        CHECK(stats.uploaded_bytes >= 1000);
        CHECK(stats.uploaded_bytes == 100 * stats.evictions + stats.resident_bytes);
        CHECK(stats.peak_device_bytes <= 500);
    }
}

}  // namespace schedule_test
