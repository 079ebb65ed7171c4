// Random schedules of several threads on one cache that follows plans, sleeps and wakes: values are always right, the
// budget is never exceeded, and nothing hangs.

#include "device/schedule.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/device.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace plan_schedule_test {

using namespace safemap;

namespace {

/// Tensors, and bundles of them that share tensors.
struct World : ScheduleGround {
    std::vector<std::vector<std::size_t>> numbers;  // the tensors of each bundle
    std::vector<std::vector<BundlePtr>> bundles;    // for each cache

    World(const Schedule& wanted, unsigned seed) : ScheduleGround(wanted, seed), bundles(caches.size()) {
        const std::uint64_t part = schedule.budget / 16;
        // The first of these share blocks if the budget is the larger one.
        for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{300}, std::uint64_t{2000},
                                         part, part, part + 100, 2 * part, 2 * part, 3 * part, 4 * part, 5 * part})
            add(size).counted.slow(size % 3 == 0 ? 100 : 0);
        for (std::size_t i = 0; i < stored.size(); ++i) bundle({i});
        // The first and the last layer of a model may have the same tensor.
        for (const auto& several : std::vector<std::vector<std::size_t>>{{1, 2, 3}, {4, 9}, {2, 9, 10}, {3, 5}, {0, 7}})
            bundle(several);
    }

    void bundle(const std::vector<std::size_t>& of) {
        std::vector<LazyTensor> tensors;
        for (const std::size_t i : of) tensors.push_back(stored[i].tensor);
        for (std::size_t i = 0; i < caches.size(); ++i) bundles[i].push_back(caches[i]->bundle(tensors));
        numbers.push_back(of);
    }
    bool has_values(const Held& held, std::size_t number) const {
        for (std::size_t i = 0; i < numbers[number].size(); ++i)
            if (read_back(*device, held[i]) != values[numbers[number][i]]) return false;
        return true;
    }
};

struct Leased {
    std::size_t number;
    Held held;
};

/// One thread of a schedule.
class Actor {
public:
    /// `number`: of the cache that the thread uses.
    Actor(World& world, std::size_t number, unsigned seed, Violations& violations)
        : world_(world),
          fixture_(*world.caches[number]),
          bundles_(world.bundles[number]),
          violations_(violations),
          random_(seed) {}

    void act(int steps) {
        for (int step = 0; step < steps; ++step) {
            world_.fail_something(random_);
            act_once();
            if (leases_.size() > 3) drop();
            // A lease still has its values, whatever other threads did.
            if (!leases_.empty()) check(leases_[random_() % leases_.size()]);
            violations_.over_budget += world_.over_budget();
        }
    }

private:
    std::size_t any() { return random_() % bundles_.size(); }

    void act_once() {
        switch (random_() % 16) {
            case 0: follow(); break;
            case 1: fixture_.sleep(); break;
            case 2: fixture_.wake(); break;
            case 3: fixture_.evict(bundles_[any()]); break;
            case 4: {
                const std::vector<BundlePtr> bundles = {bundles_[any()], bundles_[any()]};
                fixture_.prefetch(bundles);
                break;
            }
            case 5: lease(any(), true); break;
            case 6:
            case 7: drop(); break;
            case 8:
            case 9: lease(any(), false); break;
            // Most acquires are in the order of the plan.
            default: lease(order_.empty() ? any() : order_[at_++ % order_.size()], random_() % 4 == 0);
        }
    }
    void follow() {
        order_.clear();
        at_ = 0;
        const std::size_t steps = random_() % 24;
        const std::size_t among = 1 + random_() % bundles_.size();
        for (std::size_t i = 0; i < steps; ++i) order_.push_back(random_() % among);
        std::vector<BundlePtr> plan;
        for (const std::size_t i : order_) plan.push_back(bundles_[i]);
        try {
            fixture_.follow(plan, random_() % 4 != 0);
            ++violations_.followed;
        } catch (const Error& error) {
            if (error.code() != Errc::budget_exceeded) violations_.add_strange(error);
        }
    }
    /// Acquires a bundle as Uploader does, or only if it is there.
    void lease(std::size_t number, bool only_if_there) {
        const BundlePtr& bundle = bundles_[number];
        try {
            if (auto held = fixture_.try_acquire(bundle)) {
                if (bundle->view->follows) bundle->view->cache->reached(*bundle);
                hold({number, std::move(*held)});
            } else if (!only_if_there) {
                hold({number, fixture_.acquire(bundle)});
                ++violations_.acquired;
            }
        } catch (const Error& error) {
            if (error.code() != Errc::budget_exceeded && !world_.is_expected(error)) violations_.add_strange(error);
        }
    }
    void hold(Leased leased) {
        check(leased);
        if (random_() % 2 == 0) leases_.push_back(std::move(leased));
    }
    void drop() {
        if (!leases_.empty()) leases_.erase(leases_.begin() + static_cast<std::ptrdiff_t>(random_() % leases_.size()));
    }
    void check(const Leased& leased) {
        if (!world_.has_values(leased.held, leased.number)) ++violations_.wrong_values;
    }

    World& world_;
    const CacheFixture& fixture_;
    const std::vector<BundlePtr>& bundles_;
    Violations& violations_;
    std::mt19937 random_;
    std::vector<std::size_t> order_;  // the last plan of this thread
    std::size_t at_ = 0;
    std::vector<Leased> leases_;
};

/// Acquires each bundle alone. Nothing is leased, so that each one fits.
void acquire_each(const World& world, std::size_t number) {
    for (std::size_t i = 0; i < world.numbers.size(); ++i) {
        CAPTURE(i);
        std::optional<Held> held;
        // Faults of uploads that nobody waited for may still be pending. Each one is thrown once.
        const std::size_t most = world.schedule.fails == Fails::nothing ? 0 : world.numbers[i].size();
        for (std::size_t faults = 0; !held && faults <= most; ++faults) {
            const auto fault = error_of([&] { held.emplace(world.caches[number]->acquire(world.bundles[number][i])); });
            if (fault) CHECK((fault->code() == Errc::io_error || fault->code() == Errc::out_of_memory));
        }
        REQUIRE(held.has_value());
        CHECK(world.has_values(*held, i));
    }
}

/// Stops the first cache, which follows a plan, while a lease is held. Its memory is freed when it ends.
void stop_while_leased(World& world) {
    std::vector<BundlePtr> plan;
    for (std::size_t i = 4; i < 12; ++i) plan.push_back(world.bundles[0][i]);
    const auto view = world.cache->view();
    world.cache->follow(plan, true);
    std::optional<Held> held = world.cache->acquire(plan[1]);
    world.cache->stop();
    CHECK(world.has_values(*held, 5));
    held.reset();
    CHECK(view->cache->stats(*view).resident_bytes == 0);
    if (world.fake) CHECK(world.fake->allocated == 0);
}

void run_schedule(const Schedule& schedule, unsigned seed) {
    CAPTURE(seed);
    const Watchdog watchdog(seed);
    World world(schedule, seed);
    Violations violations;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] { Actor(world, t % schedule.caches, seed * 100 + t, violations).act(80); });
    for (std::thread& thread : threads) thread.join();

    violations.check();
    CHECK(violations.followed.load() > 0);

    world.stop_failing();
    for (unsigned i = 0; i < schedule.caches; ++i) {
        world.caches[i]->wake();
        world.caches[i]->follow({}, true);
    }
    // Tensors of the others make way each time.
    for (unsigned i = 0; i < schedule.caches; ++i) acquire_each(world, i);
    CHECK(world.over_budget() == 0);
    for (unsigned i = 1; i < schedule.caches; ++i) world.caches[i]->stop();
    stop_while_leased(world);
    if (!world.fake) return;
    CHECK(world.fake->peak <= schedule.budget);
    CHECK(world.fake->was_used_well());
}

/// Runs schedules with a small budget, and with one in which small groups share blocks.
void run_schedules(bool staged, Fails fails, unsigned caches = 1, bool keeps = false) {
    const unsigned first = soak::seed(0) % 1'000'000;
    for (const std::uint64_t budget : {std::uint64_t{40'000}, std::uint64_t{1'200'000}}) {
        CAPTURE(budget);
        for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(caches > 1 ? 3 : 6)); ++i)
            run_schedule(
                {.budget = budget, .staged = staged, .fails = fails, .caches = caches, .keeps_addresses = keeps},
                first + i);
    }
}

}  // namespace

TEST_CASE("random plans on the host") { run_schedules(false, Fails::nothing); }

TEST_CASE("random plans through staging buffers") { run_schedules(true, Fails::nothing); }

TEST_CASE("random plans on caches that share a budget") {
    run_schedules(false, Fails::nothing, 2);
    run_schedules(true, Fails::nothing, 2);
}

TEST_CASE("random plans on caches that share a budget, with reads and allocations that fail") {
    run_schedules(true, Fails::reads, 2);
    run_schedules(true, Fails::allocations, 2);
}

TEST_CASE("random plans on caches that keep addresses") {
    run_schedules(false, Fails::nothing, 2, true);
    run_schedules(true, Fails::nothing, 1, true);
    run_schedules(true, Fails::reads, 2, true);
    run_schedules(true, Fails::allocations, 1, true);
}

TEST_CASE("random plans with reads that fail on the host") { run_schedules(false, Fails::reads); }

TEST_CASE("random plans with reads that fail through staging buffers") { run_schedules(true, Fails::reads); }

TEST_CASE("random plans with copies that fail") { run_schedules(true, Fails::copies); }

TEST_CASE("random plans with allocations that fail") { run_schedules(true, Fails::allocations); }

}  // namespace plan_schedule_test
