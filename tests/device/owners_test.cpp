// Tests which group owns a tensor, while bundles are made and dropped.
#include "device/owners.hpp"

#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace owners_test {

using namespace safemap;
using device::BundleData;
using device::Group;
using device::Owners;
using BundlePointer = std::shared_ptr<const BundleData>;

namespace {

struct Fixture {
    CacheFixture cache{Device::open("host"), 1U << 20};
    Counted counted{1, 100'000};

    std::shared_ptr<Group> owner_of(const LazyTensor& one) const { return cache.view()->owners.find(one); }

    LazyTensor tensor(std::string name, std::uint64_t offset, std::uint64_t size = 100) const {
        return {std::move(name), stored_run(Dtype::u8, {size}, counted.source(), offset)};
    }
    /// Tensors at rising offsets: t0, t1, and so on.
    std::vector<LazyTensor> row(std::size_t count) const {
        std::vector<LazyTensor> tensors;
        for (std::size_t i = 0; i < count; ++i) tensors.push_back(tensor("t" + std::to_string(i), i * 100));
        return tensors;
    }
};

/// Returns the number of distinct values that the tensors of the groups hold.
std::size_t owned(const BundleData& bundle) {
    std::size_t sum = 0;
    for (const auto& group : bundle.groups) sum += group->layout.tensors.size();
    return sum;
}

LazyTensor huge(std::string name) {
    static const auto source = callback_source("zeros", UINT64_MAX, [](auto, auto) {});
    return {std::move(name), stored_run(Dtype::u8, {(std::uint64_t{1} << 61) - 1}, source, 0)};
}

}  // namespace

TEST_CASE("equal tensors have one owner, whatever their names, and the bundle has the names of the request") {
    const Fixture fixture;
    const auto tensors = fixture.row(3);
    const BundlePointer first = fixture.cache.bundle(tensors);
    REQUIRE(first->groups.size() == 1);
    CHECK(owned(*first) == 3);

    const BundlePointer second =
        fixture.cache.bundle(std::vector{tensors[2].renamed("tied"), fixture.tensor("new", 5'000), tensors[0]});
    REQUIRE(second->groups.size() == 2);
    CHECK(second->groups[0] == first->groups[0]);
    CHECK(second->groups[1]->layout.tensors.size() == 1);
    CHECK(second->device_bytes == first->device_bytes + 100);
    REQUIRE(second->tensors.size() == 3);
    CHECK(second->tensors[0].name() == "tied");
    CHECK(second->tensors[0].offset() == first->tensors[2].offset());
    CHECK(second->tensors[1].name() == "new");
    CHECK(second->tensors[2].name() == "t0");
    CHECK(second->find("tied") == &second->tensors[0]);
    CHECK(second->find("t2") == nullptr);
    CHECK(fixture.owner_of(tensors[1].renamed("x")) == first->groups[0]);

    const BundlePointer third = fixture.cache.bundle(tensors);
    CHECK(third->groups == first->groups);
}

TEST_CASE("what differs in elements, view, dtype or decoding has an owner of its own") {
    const Fixture fixture;
    const auto stored = stored_run(Dtype::f32, {4, 4}, fixture.counted.source(), 0);
    const LazyTensor whole("w", stored);
    const std::vector<LazyTensor> all = {
        whole,
        {"w", stored, StridedView{{4, 4}, {1, 4}, 0}},
        {"w", stored, StridedView{{2, 4}, {4, 1}, 0}},
        {"w", stored, StridedView{{2, 4}, {4, 1}, 4}},
        {"w", stored, Decoding{.byte_swap = true}},
        whole.cast(Dtype::bf16),
        {"w", stored_run(Dtype::f32, {4, 4}, fixture.counted.source(), 0)},
    };
    std::vector<BundlePointer> bundles;
    for (const LazyTensor& tensor : all) {
        CHECK(fixture.owner_of(tensor) == nullptr);
        bundles.push_back(fixture.cache.bundle(std::vector{tensor}));
        CHECK(fixture.owner_of(tensor) == bundles.back()->groups[0]);
    }
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(fixture.owner_of(all[i]) == bundles[i]->groups[0]);
}

TEST_CASE("tied tensors of one request share a place, in whatever order they come") {
    const Fixture fixture;
    auto tensors = fixture.row(3);
    tensors.insert(tensors.begin(), tensors[2].renamed("tied to t2"));
    tensors.push_back(tensors[1].renamed("tied to t0"));
    tensors.push_back(tensors[1]);
    const BundlePointer bundle = fixture.cache.bundle(tensors);
    REQUIRE(bundle->groups.size() == 1);
    CHECK(owned(*bundle) == 3);
    CHECK(bundle->device_bytes == 2 * 256 + 100);
    REQUIRE(bundle->tensors.size() == 6);
    constexpr std::uint64_t places[] = {512, 0, 256, 512, 0, 0};
    for (std::size_t i = 0; i < 6; ++i) {
        CHECK(bundle->tensors[i].name() == tensors[i].name());
        CHECK(bundle->tensors[i].offset() == places[i]);
    }
}

TEST_CASE("a request in any order finds its tensors in file order") {
    const Fixture fixture;
    std::vector<LazyTensor> tensors = {fixture.tensor("c", 900), fixture.tensor("a", 100), fixture.tensor("b", 500)};
    const BundlePointer bundle = fixture.cache.bundle(tensors);
    constexpr std::uint64_t places[] = {512, 0, 256};
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(bundle->tensors[i].name() == tensors[i].name());
        CHECK(bundle->tensors[i].offset() == places[i]);
    }
}

TEST_CASE("a group that is gone is forgotten, and its tensors can be owned anew") {
    const Fixture fixture;
    const auto tensors = fixture.row(4);
    for (int round = 0; round < 3; ++round) {
        BundlePointer bundle = fixture.cache.bundle(std::vector{tensors[0], tensors[1]});
        const BundlePointer other = fixture.cache.bundle(std::vector{tensors[1], tensors[2]});
        const std::weak_ptr<Group> group = bundle->groups[0];
        bundle.reset();
        CHECK_FALSE(group.expired());  // `other` has a tensor of it
        CHECK(fixture.owner_of(tensors[0]) == group.lock());
    }
    for (const LazyTensor& tensor : tensors) CHECK(fixture.owner_of(tensor) == nullptr);
}

TEST_CASE("a group that is not made leaves no trace") {
    const Fixture fixture;
    const auto tensors = fixture.row(3);
    const BundlePointer known = fixture.cache.bundle(std::vector{tensors[0]});
    std::vector<LazyTensor> big;  // 9 times 2^61 bytes
    for (int i = 0; i < 9; ++i) big.push_back(huge("big" + std::to_string(i)));
    std::vector<LazyTensor> request = {tensors[0], tensors[1]};
    request.insert(request.end(), big.begin(), big.end());
    request.push_back(tensors[2]);
    CHECK_FAULT(fixture.cache.bundle(request), Errc::budget_exceeded);
    CHECK(known->groups[0].use_count() == 1);
    for (std::size_t i = 1; i < request.size(); ++i) CHECK(fixture.owner_of(request[i]) == nullptr);
    CHECK(fixture.owner_of(tensors[0]) == known->groups[0]);
    const BundlePointer made = fixture.cache.bundle(std::vector{tensors[2], tensors[1]});
    CHECK(owned(*made) == 2);
    CHECK(fixture.owner_of(tensors[1]) == made->groups[0]);
}

TEST_CASE("own() says which group is new, and which tensors were moved") {
    const Fixture fixture;
    const auto all = fixture.row(4);
    Owners owners;
    std::vector<LazyTensor> first = {all[1], all[0], all[1].renamed("tied")};
    for (const LazyTensor& tensor : all) CHECK(owners.find(tensor) == nullptr);
    const auto made = owners.own(fixture.cache.view(), first);
    REQUIRE(made.size() == 3);
    for (const auto& place : made) CHECK(place.group == made[0].group);
    CHECK(made[0].tensor == 1);
    CHECK(made[1].tensor == 0);
    CHECK(made[2].tensor == 1);
    CHECK(made[0].moved);
    CHECK(made[1].moved);
    CHECK_FALSE(made[2].moved);
    CHECK(first[2].name() == "tied");

    std::vector<LazyTensor> second = {all[0], all[2]};
    const auto mixed = owners.own(fixture.cache.view(), second);
    CHECK(mixed[0].group == made[0].group);
    CHECK(mixed[0].tensor == 0);
    CHECK(owners.find(all[0]) == made[0].group);
    CHECK_FALSE(mixed[0].moved);
    CHECK(second[0].name() == "t0");
    CHECK(mixed[1].group != made[0].group);
    CHECK(mixed[1].group->number > made[0].group->number);
    std::vector<LazyTensor> nothing;
    CHECK(owners.own(fixture.cache.view(), nothing).empty());
    owners.forget(*made[0].group);
    CHECK(owners.find(all[0]) == nullptr);
    CHECK(owners.find(all[2]) == mixed[1].group);
    owners.forget(*mixed[1].group);
    CHECK(owners.find(all[2]) == nullptr);
}

TEST_CASE("threads make and drop bundles of the same tensors at once") {
    const Fixture fixture;
    const auto all = fixture.row(12);
    std::atomic<int> wrong = 0;
    const auto work = [&](unsigned seed) {
        std::mt19937 random(seed);
        std::vector<BundlePointer> kept(3);
        for (int round = 0; round < 1'500; ++round) {
            std::vector<LazyTensor> tensors;
            for (std::size_t n = 1 + random() % 5; n > 0; --n)
                tensors.push_back(all[random() % all.size()].renamed("r" + std::to_string(n)));
            const std::vector<LazyTensor> copy = tensors;
            const BundlePointer bundle = fixture.cache.bundle(std::move(tensors));
            for (std::size_t i = 0; i < copy.size(); ++i) {
                // As long as the bundle lives, its groups own its tensors.
                const auto owner = fixture.owner_of(copy[i]);
                if (std::ranges::find(bundle->groups, owner) == bundle->groups.end()) ++wrong;
                if (bundle->tensors[i].name() != copy[i].name()) ++wrong;
            }
            kept[random() % kept.size()] = random() % 3 == 0 ? nullptr : bundle;
        }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    for (const LazyTensor& tensor : all) CHECK(fixture.owner_of(tensor) == nullptr);
}

}  // namespace owners_test
