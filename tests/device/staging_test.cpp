// Tests staging buffers: their reuse waits for their copies, the bulk lane leaves one to the demand lane, and the rings
// of a process share a limit.
#include "device/staging.hpp"

#include "device/cache_fixture.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace staging_test {

using safemap::Device;
using safemap::Errc;
using safemap::device::StagingPool;
using safemap::device::StagingRing;

namespace {

using Lane = Device::Lane;

/// An event that happens when a test says so.
class Switch final : public safemap::DeviceEvent {
public:
    bool done() const override {
        const std::lock_guard lock(mutex_);
        return done_;
    }
    bool wait_until(std::chrono::steady_clock::time_point) const override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_; });
        return true;
    }
    void set() {
        const std::lock_guard lock(mutex_);
        done_ = true;
        changed_.notify_all();
    }

private:
    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    bool done_ = false;
};

/// A device that only has staging, and counts the bytes of the buffers that exist.
class Buffers final : public Device {
public:
    std::atomic<std::uint64_t> bytes = 0;
    std::atomic<bool> refuses = false;

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t free_memory() const override { return 0; }
    std::shared_ptr<safemap::DeviceMemory> allocate(std::uint64_t) override { return nullptr; }
    std::shared_ptr<safemap::StagingBuffer> allocate_staging(std::uint64_t size) override {
        if (refuses) throw safemap::Error(Errc::out_of_memory, "nothing to lock");
        return std::make_shared<Buffer>(bytes, size);
    }
    safemap::DeviceQueue& queue(Lane) override { throw std::logic_error("no copies"); }
    void copy_to_host(std::span<std::byte>, const safemap::DeviceMemory&, std::uint64_t) override {}

private:
    struct Buffer final : safemap::StagingBuffer {
        Buffer(std::atomic<std::uint64_t>& of, std::uint64_t size) : all(of), memory(size) { all += size; }
        ~Buffer() override { all -= memory.size(); }
        std::span<std::byte> bytes() const noexcept override { return memory; }
        std::atomic<std::uint64_t>& all;
        mutable std::vector<std::byte> memory;
    };
    const std::string name_ = "buffers";
};

/// Takes a buffer and gives it back with a copy that is in progress until the event happens.
std::shared_ptr<Switch> start_copy(StagingRing& ring, Lane lane) {
    auto copy = std::make_shared<Switch>();
    ring.take(lane).fence(copy);
    return copy;
}

std::vector<StagingRing::Loan> take_some(StagingRing& ring, int count) {
    std::vector<StagingRing::Loan> loans;
    for (int i = 0; i < count; ++i) loans.push_back(ring.take(Lane::demand));
    return loans;
}

/// Takes a buffer on another thread.
std::future<std::optional<StagingRing::Loan>> take_soon(StagingRing& ring, Lane lane) {
    return std::async(std::launch::async, [&ring, lane] { return std::optional(ring.take(lane)); });
}

bool waits(const std::future<std::optional<StagingRing::Loan>>& taking) {
    return taking.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
}

/// A device and a limit that rings share.
struct Sharing {
    const std::shared_ptr<Buffers> device = std::make_shared<Buffers>();
    const std::shared_ptr<StagingPool> pool = std::make_shared<StagingPool>();
};

}  // namespace

TEST_CASE("the fake device detects a write to a staging buffer whose copy is not done") {
    const auto device = std::make_shared<FakeDevice>();
    device->pause(true);
    const auto memory = device->allocate(4);
    const auto staging = device->allocate_staging(4);
    auto& queue = device->queue(Device::Lane::bulk);
    queue.copy(*memory, 0, *staging, {0, 4});
    const auto copy = queue.record();
    CHECK_FALSE(copy->done());
    staging->bytes()[1] = std::byte{1};
    device->pause(false);
    copy->wait();
    CHECK(device->staging_was_touched);
}

TEST_CASE("a buffer is reused only after its copy is done") {
    const auto device = std::make_shared<FakeDevice>();
    device->copy_microseconds = 500;
    const auto memory = device->allocate(100);
    auto& queue = device->queue(Device::Lane::bulk);
    StagingRing ring(device, 100, 2);
    for (int i = 0; i < 50; ++i) {
        auto loan = ring.take(Device::Lane::bulk);
        std::fill(loan.buffer()->bytes().begin(), loan.buffer()->bytes().end(), static_cast<std::byte>(i));
        queue.copy(*memory, 0, *loan.buffer(), {0, 100});
        loan.fence(queue.record());
    }
    CHECK_FALSE(device->staging_was_touched);
    CHECK(ring.allocated() <= 200);
    CHECK(device->staging == ring.allocated());
}

TEST_CASE("nobody writes to a buffer, or waits for it, after a copy with which the device failed") {
    const auto device = std::make_shared<FakeDevice>();
    const auto memory = device->allocate(4);
    StagingRing ring(device, 4, 1);
    auto& queue = device->queue(Device::Lane::bulk);
    device->fail_device = 0;
    device->pause(true);  // a device that has failed records no event
    {
        auto loan = ring.take(Device::Lane::bulk);
        queue.copy(*memory, 0, *loan.buffer(), {0, 4});
        loan.fence(queue.record());
    }
    device->pause(false);
    CHECK_FAULT(ring.take(Device::Lane::bulk), Errc::device_failed);
    CHECK_FAULT(ring.take(Device::Lane::bulk), Errc::device_failed);
}

TEST_CASE("uploads continue with fewer buffers than requested") {
    const auto device = std::make_shared<FakeDevice>();
    StagingRing ring(device, 10, 3);
    device->fail_staging = 2;  // the third
    std::optional<StagingRing::Loan> first = ring.take(Device::Lane::bulk);
    std::thread waits([&] { CHECK_OK(ring.take(Device::Lane::bulk)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    first.reset();
    waits.join();
    CHECK(ring.allocated() == 20);
}

TEST_CASE("without any buffer, taking one fails, and succeeds when there is memory again") {
    const auto device = std::make_shared<FakeDevice>();
    StagingRing ring(device, 10, 2);
    device->fail_staging = 0;
    CHECK_FAULT(ring.take(Device::Lane::bulk), Errc::out_of_memory);
    CHECK_OK(ring.take(Device::Lane::bulk));
}

TEST_CASE("who waits for a buffer of the bulk lane helps, and may want the demand lane in the end") {
    const auto device = std::make_shared<Buffers>();
    for (const bool waits_for_copy : {false, true}) {
        CAPTURE(waits_for_copy);
        StagingRing ring(device, 10, 2);
        std::optional<StagingRing::Loan> loan;
        std::shared_ptr<Switch> copy;
        if (waits_for_copy) copy = start_copy(ring, Lane::bulk);
        else loan.emplace(ring.take(Lane::bulk));
        std::atomic<int> looks = 0;
        std::atomic<bool> is_demanded = false;
        const StagingRing::Taker taker{[&] { return is_demanded ? Lane::demand : Lane::bulk; },
                                       [&] {
                                           ring.take(Lane::demand);  // the other buffer
                                           return ++looks % 2 == 0;
                                       }};
        auto taking = std::async(std::launch::async, [&] { return std::optional(ring.take(taker)); });
        CHECK(soon([&] { return looks > 10; }));
        CHECK(waits(taking));
        is_demanded = true;
        const auto taken = taking.get();
        CHECK(taken->lane() == Lane::demand);
        if (copy) copy->set();
    }
}

TEST_CASE("the buffer that was used last is taken if its copy is done, otherwise the one whose copy began first") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 3);
    const auto address = [](const StagingRing::Loan& loan) { return loan.buffer()->bytes().data(); };
    std::array<const std::byte*, 3> used = {};
    std::array<std::shared_ptr<Switch>, 3> copies;
    {
        std::vector<StagingRing::Loan> loans;
        for (int i = 0; i < 3; ++i) loans.push_back(ring.take(Lane::demand));
        for (std::size_t i = 0; i < 3; ++i) {
            used[i] = address(loans[i]);
            loans[i].fence(copies[i] = std::make_shared<Switch>());
        }
        // They are given back in this order.
        for (StagingRing::Loan& loan : loans) const StagingRing::Loan back = std::move(loan);
    }
    copies[0]->set();
    CHECK(address(ring.take(Lane::demand)) == used[0]);  // which was then used last
    copies[1]->set();
    copies[2]->set();
    CHECK(address(ring.take(Lane::demand)) == used[0]);
    const auto first = ring.take(Lane::demand);
    const auto second = ring.take(Lane::demand);
    CHECK(address(first) == used[0]);
    CHECK(address(second) == used[2]);
    CHECK(address(ring.take(Lane::demand)) == used[1]);
}

TEST_CASE("of several buffers whose copies are done, the one whose copy was done last is taken") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 4);
    std::vector<std::shared_ptr<Switch>> copies;
    std::vector<const std::byte*> used;
    for (int i = 0; i < 4; ++i) {
        auto loan = ring.take(Lane::demand);
        used.push_back(loan.buffer()->bytes().data());
        loan.fence(copies.emplace_back(std::make_shared<Switch>()));
    }
    for (std::size_t i = 0; i < 3; ++i) copies[i]->set();
    for (int i = 0; i < 3; ++i) CHECK(ring.take(Lane::demand).buffer()->bytes().data() == used[2]);
    CHECK(ring.allocated() == 40);
    copies[3]->set();
}

TEST_CASE("when the bulk lane begins, there is a buffer for the demand lane, too") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 4);
    std::vector<std::shared_ptr<Switch>> copies;
    for (int i = 0; i < 3; ++i) {
        copies.push_back(start_copy(ring, Lane::bulk));
        CHECK(ring.allocated() == 10 * copies.size() + 10);
    }
    device->refuses = true;
    CHECK_OK(ring.take(Lane::demand));
    for (const auto& copy : copies) copy->set();
    StagingRing single(device, 10, 1);
    device->refuses = false;
    CHECK_OK(single.take(Lane::bulk));
    CHECK(single.allocated() == 10);
}

TEST_CASE("copies of the bulk lane leave a buffer to the demand lane") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 3);
    const auto first = start_copy(ring, Lane::bulk);
    const auto second = start_copy(ring, Lane::bulk);
    auto bulk = take_soon(ring, Lane::bulk);
    CHECK(waits(bulk));
    start_copy(ring, Lane::demand)->set();
    CHECK(ring.allocated() == 30);
    CHECK(waits(bulk));  // also where the buffer of the demand lane is free
    start_copy(ring, Lane::demand)->set();
    first->set();
    CHECK_OK(bulk.get());
    second->set();
}

TEST_CASE("the demand lane waits for no copy of the bulk lane") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 2);
    const auto held = start_copy(ring, Lane::bulk);
    std::optional<StagingRing::Loan> other = ring.take(Lane::demand);
    auto demand = take_soon(ring, Lane::demand);
    CHECK(waits(demand));
    SUBCASE("it gets the buffer of another demand") { other.reset(); }
    SUBCASE("it gets a buffer of the bulk lane whose copy is done") { held->set(); }
    CHECK_OK(demand.get());
    held->set();
}

TEST_CASE("a ring of one buffer lends it to both lanes") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 1);
    for (const auto lane : {Lane::bulk, Lane::demand, Lane::demand, Lane::bulk, Lane::bulk}) {
        const auto copy = start_copy(ring, lane);
        auto next = take_soon(ring, Lane::demand);
        CHECK(waits(next));
        copy->set();
        CHECK_OK(next.get());
    }
}

TEST_CASE("a buffer behind one whose copy is in progress is found") {
    const auto device = std::make_shared<Buffers>();
    StagingRing ring(device, 10, 2);
    const auto held = start_copy(ring, Lane::bulk);
    start_copy(ring, Lane::demand)->set();
    CHECK_OK(ring.take(Lane::demand));
    held->set();
}

TEST_CASE_FIXTURE(Sharing, "rings share the limit of the one that may have most") {
    StagingRing large(device, 10, 4, pool);
    StagingRing small(device, 10, 2, pool);
    auto loans = take_some(large, 4);
    // One is always there.
    std::optional<StagingRing::Loan> one = small.take(Lane::demand);
    CHECK(device->bytes == 50);
    const auto copy = std::make_shared<Switch>();
    loans.back().fence(copy);
    loans.pop_back();
    auto second = take_soon(small, Lane::demand);
    CHECK(waits(second));  // a copy reads the free buffer of the other ring
    copy->set();
    CHECK_OK(second.get());
    CHECK_OK(small.take(Lane::demand));
    CHECK(small.allocated() == 20);
    CHECK(device->bytes == 50);
}

TEST_CASE_FIXTURE(Sharing, "beyond the limit, a ring has a buffer for each lane") {
    StagingRing large(device, 10, 4, pool);
    StagingRing small(device, 10, 4, pool);
    auto loans = take_some(large, 4);
    const auto held = start_copy(small, Lane::bulk);
    std::optional<StagingRing::Loan> demand = small.take(Lane::demand);
    CHECK(device->bytes == 60);
    auto third = take_soon(small, Lane::demand);
    CHECK(waits(third));
    demand.reset();
    CHECK_OK(third.get());
    CHECK(device->bytes == 60);
    held->set();
}

TEST_CASE_FIXTURE(Sharing, "demands that take turns with held copies of the bulk lane do not go on growing") {
    StagingRing large(device, 10, 4, pool);
    StagingRing small(device, 10, 4, pool);
    auto loans = take_some(large, 4);
    const auto held = start_copy(small, Lane::bulk);
    static_cast<void>(small.take(Lane::demand));
    auto bulk = take_soon(small, Lane::bulk);
    CHECK(waits(bulk));
    CHECK_OK(small.take(Lane::demand));
    CHECK(device->bytes == 60);
    held->set();
    CHECK_OK(bulk.get());
}

TEST_CASE_FIXTURE(Sharing, "the bulk lane has a buffer beyond the limit, too") {
    StagingRing large(device, 10, 4, pool);
    StagingRing small(device, 10, 4, pool);
    auto loans = take_some(large, 4);
    static_cast<void>(small.take(Lane::demand));
    CHECK_OK(small.take(Lane::bulk));
    CHECK(device->bytes == 60);
}

TEST_CASE_FIXTURE(Sharing, "a ring does not take the buffer that another one keeps for demands") {
    StagingRing first(device, 10, 8, pool);
    StagingRing second(device, 10, 8, pool);
    std::vector<std::shared_ptr<Switch>> held;
    for (int i = 0; i < 7; ++i) held.push_back(start_copy(first, Lane::bulk));
    static_cast<void>(first.take(Lane::demand));
    CHECK(first.allocated() == 80);
    const auto one = second.take(Lane::demand);
    auto two = take_soon(second, Lane::demand);
    CHECK(waits(two));
    CHECK(first.allocated() == 80);
    held.front()->set();
    CHECK_OK(two.get());
    CHECK(first.allocated() == 70);
    CHECK_OK(first.take(Lane::demand));
    CHECK(device->bytes == 90);
    for (const auto& copy : held) copy->set();
}

TEST_CASE_FIXTURE(Sharing, "a ring takes a buffer of any larger one, if the largest has none to give") {
    StagingRing busy(device, 10, 9, pool);
    StagingRing idle(device, 10, 9, pool);
    StagingRing needs(device, 10, 9, pool);
    auto loans = take_some(busy, 5);
    take_some(idle, 4);  // and give them back
    for (int i = 0; i < 2; ++i) loans.push_back(needs.take(Lane::demand));
    CHECK(busy.allocated() == 50);
    CHECK(idle.allocated() == 30);
    CHECK(device->bytes == 100);
}

TEST_CASE("a device lives until a buffer of it is freed that another ring took") {
    for (int i = 0; i < 20; ++i) {
        const auto pool = std::make_shared<StagingPool>();
        StagingRing stays(std::make_shared<Buffers>(), 10, 4, pool);
        const auto mine = stays.take(Lane::demand);
        auto goes = std::make_unique<StagingRing>(std::make_shared<Buffers>(), 10, 4, pool);
        take_some(*goes, 3);  // and give them back
        auto taking = take_soon(stays, Lane::demand);
        goes.reset();
        CHECK_OK(taking.get());
    }
}

TEST_CASE_FIXTURE(Sharing, "a ring without buffers, such as that of a host device, does not raise the limit") {
    const StagingRing unused(device, 10, 100, pool);
    StagingRing first(device, 10, 3, pool);
    StagingRing second(device, 10, 3, pool);
    auto loans = take_some(first, 3);
    loans.push_back(second.take(Lane::demand));
    auto another = take_soon(second, Lane::demand);
    CHECK(waits(another));
    loans.pop_back();
    CHECK_OK(another.get());
}

TEST_CASE_FIXTURE(Sharing, "an allocation that fails after another ring gave up a buffer leaves both in order") {
    const auto other_device = std::make_shared<Buffers>();
    StagingRing first(device, 10, 8, pool);
    StagingRing second(other_device, 10, 8, pool);
    take_some(first, 8);  // and give them back
    const auto one = start_copy(second, Lane::demand);
    other_device->refuses = true;
    auto next = take_soon(second, Lane::demand);
    CHECK(soon([&] { return first.allocated() == 70 && second.allocated() == 10; }));
    CHECK(waits(next));  // with the one buffer that there is
    CHECK(second.peak() == 10);
    one->set();
    CHECK_OK(next.get());
}

TEST_CASE_FIXTURE(Sharing, "a ring takes idle buffers of a larger one, which keeps more") {
    const auto other_device = std::make_shared<Buffers>();
    StagingRing first(device, 10, 8, pool);
    StagingRing second(other_device, 10, 8, pool);
    take_some(first, 8);  // and give them back
    CHECK(first.allocated() == 80);
    // The first one is beyond the limit, and the next three are those of the other ring.
    auto loans = take_some(second, 4);
    CHECK(first.allocated() == 50);
    CHECK(device->bytes == 50);
    CHECK(second.allocated() == 40);
    auto fifth = take_soon(second, Lane::demand);
    CHECK(waits(fifth));
    loans.pop_back();
    CHECK_OK(fifth.get());
    CHECK(first.peak() == 80);
    CHECK(second.peak() == 40);
}

TEST_CASE_FIXTURE(Sharing, "a ring takes no larger ring's buffers that are smaller than its own") {
    StagingRing first(device, 10, 8, pool);
    StagingRing second(device, 20, 2, pool);
    take_some(first, 8);  // and give them back
    std::optional<StagingRing::Loan> one = second.take(Lane::demand);
    auto another = take_soon(second, Lane::demand);
    CHECK(waits(another));
    one.reset();
    CHECK_OK(another.get());
    CHECK(first.allocated() == 80);
}

TEST_CASE_FIXTURE(Sharing, "the end of a ring leaves its part to the others") {
    StagingRing stays(device, 10, 2, pool);
    {
        StagingRing goes(device, 10, 2, pool);
        const auto one = goes.take(Lane::demand);
        const auto two = goes.take(Lane::demand);
        const auto mine = stays.take(Lane::demand);
        CHECK(device->bytes == 30);
    }
    CHECK(pool->rings.size() == 1);
    CHECK(device->bytes == 10);
    const auto one = stays.take(Lane::demand);
    const auto two = stays.take(Lane::demand);
    CHECK(device->bytes == 20);
}

TEST_CASE("a thread that waits for a buffer tries itself when another one's allocation fails") {
    const auto device = std::make_shared<FakeDevice>();
    for (int i = 0; i < 50; ++i) {
        StagingRing ring(device, 10, 1);
        device->fail_staging = 0;
        std::atomic<int> failed = 0;
        const auto take = [&] {
            try {
                ring.take(Lane::demand);
            } catch (const safemap::Error&) {
                ++failed;
            }
        };
        std::thread other(take);
        take();
        other.join();
        CHECK(failed == 1);
    }
}

TEST_CASE_FIXTURE(Sharing, "random use of rings that share a limit") {
    constexpr std::size_t rings = 4;
    {
        // The second has smaller buffers, and the last may have one only.
        std::array<StagingRing, rings> all = {StagingRing(device, 8, 6, pool), StagingRing(device, 4, 12, pool),
                                              StagingRing(device, 8, 6, pool), StagingRing(device, 8, 1, pool)};
        constexpr std::uint64_t most = 48 + 2 * 8 + 2 * 4 + 2 * 8 + 8;
        std::atomic<bool> was_exceeded = false;
        std::atomic<bool> was_in_use = false;
        std::mutex mutex;
        std::vector<std::pair<std::shared_ptr<Switch>, const safemap::StagingBuffer*>> copies;
        std::atomic<bool> over = false;
        std::thread copier([&] {
            std::mt19937 random(1);
            for (;;) {
                {
                    const std::lock_guard lock(mutex);
                    if (over && copies.empty()) return;
                    if (!copies.empty()) {
                        std::swap(copies[random() % copies.size()], copies.back());
                        copies.back().first->set();
                        copies.pop_back();
                    }
                }
                std::this_thread::yield();
            }
        });
        std::vector<std::thread> threads;
        for (unsigned seed = 0; seed < 6; ++seed)
            threads.emplace_back([&, seed] {
                std::mt19937 random(seed);
                for (int i = 0; i < 300; ++i) {
                    StagingRing& ring = all[random() % rings];
                    auto loan = ring.take(random() % 2 == 0 ? Lane::demand : Lane::bulk);
                    if (device->bytes > most) was_exceeded = true;
                    const std::lock_guard lock(mutex);
                    for (const auto& [copy, buffer] : copies)
                        if (buffer == loan.buffer().get() && !copy->done()) was_in_use = true;
                    if (random() % 4 == 0) continue;
                    copies.emplace_back(std::make_shared<Switch>(), loan.buffer().get());
                    loan.fence(copies.back().first);
                }
            });
        for (std::thread& thread : threads) thread.join();
        over = true;
        copier.join();
        CHECK_FALSE(was_exceeded);
        CHECK_FALSE(was_in_use);
    }
    CHECK(pool->rings.empty());
    CHECK(device->bytes == 0);
}

}  // namespace staging_test
