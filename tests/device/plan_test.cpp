// Tests plans: what stays, what shares slots, and which use comes next.
#include "device/plan.hpp"

#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <safemap/device.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace plan_test {

using namespace safemap;
using namespace safemap::device;

namespace {

std::vector<Fate> of_sizes(const std::vector<std::uint64_t>& sizes) {
    std::vector<Fate> groups;
    for (const std::uint64_t size : sizes) groups.push_back({.bytes = size});
    return groups;
}

std::uint64_t bytes_that_stay(const Split& split) {
    std::uint64_t sum = 0;
    for (const Fate& fate : split.fates)
        if (fate.stays) sum += fate.bytes;
    return sum;
}

std::uint64_t bytes_of_slots(const Split& split) {
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : split.slot_bytes) sum += bytes;
    return sum;
}

/// Bundles of one tensor each, in one cache.
struct Model {
    CacheFixture cache{Device::open("host"), 1000};
    std::vector<Bytes> tensors;
    std::vector<std::shared_ptr<const BundleData>> bundles;

    explicit Model(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            tensors.emplace_back("t" + std::to_string(i), 100 + i);
            bundles.push_back(cache.bundle(tensors.back().tensor));
        }
    }
    const Group& group(std::size_t i) const { return *bundles[i]->groups.front(); }
};

}  // namespace

TEST_CASE("everything stays if it fits to the last byte") {
    const Split split = device::split(of_sizes({10, 20, 30}), 60);
    CHECK(bytes_that_stay(split) == 60);
    CHECK(split.slot_bytes.empty());
    CHECK(split.needed == 0);
}

TEST_CASE("what does not stay alternates between two slots, each as large as its largest group") {
    const Split split = device::split(of_sizes({10, 10, 10, 10, 10, 10}), 40);
    CHECK(bytes_that_stay(split) == 20);
    REQUIRE(split.slot_bytes == std::vector<std::uint64_t>{10, 10});
    std::vector<std::uint32_t> slots;
    for (const Fate& fate : split.fates)
        if (!fate.stays) slots.push_back(fate.slot);
    CHECK(slots == std::vector<std::uint32_t>{0, 1, 0, 1});
}

TEST_CASE("what stays is spread evenly over the order") {
    const Split split = device::split(of_sizes(std::vector<std::uint64_t>(32, 100)), 1600);  // 14 stay, 18 do not
    CHECK(bytes_that_stay(split) == 1400);
    std::size_t in_a_row = 0;
    for (const Fate& fate : split.fates) {
        in_a_row = fate.stays ? 0 : in_a_row + 1;
        CHECK(in_a_row <= 2);
    }
}

TEST_CASE("a few large groups stay, so that the slots are small") {
    const Split split = device::split(of_sizes({500, 50, 50, 50, 50, 50, 50, 50, 50, 500}), 1200);
    CHECK(split.fates.front().stays);
    CHECK(split.fates.back().stays);
    CHECK(bytes_that_stay(split) == 1100);
    CHECK(bytes_of_slots(split) == 100);
}

TEST_CASE("groups that are used together with others stay first, and never get a slot") {
    auto groups = of_sizes({50, 50, 50, 50, 50});
    groups[3].alone = false;
    const Split split = device::split(groups, 150);
    CHECK(split.fates[3].stays);
    groups[3].bytes = 60;
    const Split too_small = device::split(groups, 150);
    CHECK_FALSE(too_small.fates[3].stays);
    CHECK(too_small.fates[3].slot == no_slot);
}

TEST_CASE("a plan whose two largest groups do not fit says how much it needs") {
    CHECK(device::split(of_sizes({60, 10, 50, 10}), 100).needed == 110);
    CHECK(device::split(of_sizes({60, 10, 50, 10}), 110).needed <= 110);
    CHECK(device::split(of_sizes({UINT64_MAX, 2}), 100).needed == UINT64_MAX);
}

TEST_CASE("random plans fit into the budget, and use nearly all of it") {
    std::mt19937_64 random(1);
    for (int round = 0; round < 2000; ++round) {
        CAPTURE(round);
        std::vector<Fate> groups(2 + random() % 60);
        const std::uint64_t most = 1 + random() % 1000;
        std::uint64_t total = 0;
        for (Fate& group : groups) {
            group.bytes = random() % (most + 1);
            group.alone = random() % 8 != 0;
            total += group.bytes;
        }
        const std::uint64_t budget = random() % (total + 10);
        const Split split = device::split(groups, budget);
        if (total <= budget) {
            CHECK(bytes_that_stay(split) == total);
            continue;
        }
        if (split.needed > budget) continue;
        CHECK(bytes_that_stay(split) + bytes_of_slots(split) <= budget);
        CHECK(split.slot_bytes.size() <= 2);
        // Nothing else could stay beside the slots, except what would need a larger window.
        std::uint64_t smallest = UINT64_MAX;
        for (std::size_t i = 0; i < groups.size(); ++i) {
            const Fate& fate = split.fates[i];
            CHECK(fate.bytes == groups[i].bytes);
            CHECK_FALSE((fate.stays && fate.slot != no_slot));
            if (fate.slot != no_slot) CHECK(fate.bytes <= split.slot_bytes[fate.slot]);
            if (fate.slot != no_slot) CHECK(fate.alone);
            if (fate.slot != no_slot) smallest = std::min(smallest, fate.bytes);
        }
        if (smallest != UINT64_MAX) CHECK(budget - bytes_that_stay(split) - bytes_of_slots(split) <= smallest + most);
    }
}

TEST_CASE("the next use is counted from the place that was reached") {
    const Model model(4);
    const auto& b = model.bundles;
    Plan plan({b[0], b[1], b[0], b[2]}, true);
    CHECK(plan.groups().size() == 3);
    CHECK(plan.next_use(model.group(0)) == 1);
    CHECK(plan.next_use(model.group(2)) == 4);
    CHECK(plan.next_use(model.group(3)) == Plan::never);
    CHECK(plan.upcoming(1) == b[0].get());

    plan.reach(*b[0]);
    CHECK(plan.next_use(model.group(0)) == 2);
    CHECK(plan.next_use(model.group(1)) == 1);
    plan.reach(*b[3]);  // not in the plan
    CHECK(plan.next_use(model.group(1)) == 1);
    plan.reach(*b[0]);  // its second place
    CHECK(plan.next_use(model.group(0)) == 2);
    CHECK(plan.next_use(model.group(1)) == 3);
    CHECK(plan.upcoming(1) == b[2].get());
    CHECK(plan.upcoming(2) == b[0].get());
    plan.reach(*b[2]);
    CHECK(plan.next_use(model.group(2)) == 4);
    CHECK(plan.upcoming(1) == b[0].get());
}

TEST_CASE("a plan that is not cyclic ends") {
    const Model model(3);
    const auto& b = model.bundles;
    Plan plan({b[0], b[1], b[2]}, false);
    plan.reach(*b[1]);
    CHECK(plan.next_use(model.group(0)) == Plan::never);
    CHECK(plan.next_use(model.group(1)) == Plan::never);
    CHECK(plan.next_use(model.group(2)) == 1);
    CHECK(plan.upcoming(2) == nullptr);
    plan.reach(*b[2]);
    CHECK(plan.next_use(model.group(2)) == Plan::never);
    CHECK(plan.upcoming(1) == nullptr);
}

TEST_CASE("a random walk through a plan agrees with a search from the place on") {
    const Model model(6);
    std::mt19937 random(2);
    for (int round = 0; round < 200; ++round) {
        std::vector<std::shared_ptr<const BundleData>> order;
        for (std::size_t i = 0, n = 1 + random() % 12; i < n; ++i) order.push_back(model.bundles[random() % 5]);
        const bool cyclic = random() % 2 == 0;
        Plan plan(order, cyclic);
        std::size_t here = 0;  // places that were passed
        for (int step = 0; step < 30; ++step) {
            const auto find = [&](const BundleData* wanted) {
                for (std::size_t steps = 1; steps <= order.size(); ++steps) {
                    const std::size_t at = here + steps - 1;
                    if (at >= order.size() && !cyclic) break;
                    if (order[at % order.size()].get() == wanted) return steps;
                }
                return Plan::never;
            };
            for (std::size_t i = 0; i < 6; ++i) REQUIRE(plan.next_use(model.group(i)) == find(model.bundles[i].get()));
            const auto& next = model.bundles[random() % 6];
            const std::size_t steps = find(next.get());
            plan.reach(*next);
            if (steps != Plan::never) here += steps;
            if (cyclic) here %= order.size();
            // The place after the last one is the one before the first in a cycle.
        }
    }
}

}  // namespace plan_test
