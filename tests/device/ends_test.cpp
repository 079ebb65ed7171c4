// Ends an uploader while other threads use what may outlive it: leases, requests, orders, bundles, capsules. Nothing is
// used after its end, which AddressSanitizer and ThreadSanitizer would see, and the device gets all memory back.
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/device_dlpack.hpp>
#include <safemap/error.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ends_test {

using namespace safemap;

namespace {

/// An uploader of layers of 1,000 bytes, on a device that may need staging.
struct World {
    std::shared_ptr<FakeDevice> fake = std::make_shared<FakeDevice>();
    std::vector<Bytes> layers = {};
    std::vector<Bundle> bundles = {};
    std::optional<DeviceBudget> budget = {};
    std::optional<Uploader> uploader = {};
    std::optional<Uploader> neighbour = {};  // under the same budget
    UploadOrder order = {};                  // ends after the uploader, or in a thread meanwhile
    std::atomic<int> wrong = 0;              // findings of threads

    World(unsigned round, std::uint64_t bytes) {
        fake->writable = round % 2 == 0;
        fake->copy_microseconds = round % 4 == 1 ? 50 : 0;
        budget.emplace(fake, DeviceBudgetOptions{.device_bytes = bytes, .staging_bytes = 8'192});
        uploader.emplace(*budget, no_tensors(), UploadOptions{.readers = 1 + round % 3});
        if (round % 3 == 0) neighbour.emplace(*budget, no_tensors());
        for (int i = 0; i < 8; ++i) {
            layers.emplace_back("layer" + std::to_string(i), 1'000);
            layers.back().counted.slow(static_cast<int>(round % 5) * 20);
            bundles.push_back(uploader->bundle(std::vector{layers.back().tensor}));
        }
        if (round % 2 == 0) order = uploader->follow(bundles);
    }
    /// Ends the uploader while `work` runs in as many threads, each with a number.
    void end_during(unsigned threads, unsigned pause, const std::function<void(unsigned)>& work) {
        std::atomic<unsigned> begun = 0;
        std::vector<std::jthread> running;
        for (unsigned t = 0; t < threads; ++t)
            running.emplace_back([&, t] {
                ++begun;
                work(t);
            });
        while (begun < threads) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(pause % 200));
        if (pause % 4 == 0) budget.reset();
        uploader.reset();
    }
    /// Notes a lease that does not have the value of these bytes; any thread.
    void check(const Lease& lease, const Bytes& bytes) {
        if (read_back(*fake, lease.tensors()[0]) != value_of(bytes.tensor)) ++wrong;
    }
    /// Ends what is left, and checks the findings, and that the device has all of its memory back.
    void check_end() {
        CHECK(wrong == 0);
        bundles.clear();
        order.end();
        neighbour.reset();
        budget.reset();
        CHECK(soon([&] { return fake->allocated == 0; }));
        CHECK(fake->was_used_well());
    }
};

unsigned rounds(int all) { return static_cast<unsigned>(soak::rounds(all)); }

}  // namespace

TEST_CASE("leases are released, waited for and read while their uploader ends") {
    for (unsigned round = 0; round < rounds(400); ++round) {
        CAPTURE(round);
        World world(round, 4'000);
        std::vector<Lease> leases;
        for (std::size_t i = 0; i < 3; ++i) leases.push_back(world.uploader->acquire(world.bundles[i]));
        world.end_during(3, round * 7, [&](unsigned t) {
            Lease lease = std::move(leases[t]);
            lease.wait();
            world.check(lease, world.layers[t]);
            lease.release();
        });
        world.check_end();
    }
}

TEST_CASE("an order is walked, begun again and ended while its uploader ends") {
    for (unsigned round = 0; round < rounds(400); ++round) {
        CAPTURE(round);
        World world(round * 2, 3'000);
        world.end_during(1, round * 7, [&](unsigned) {
            try {
                for (std::size_t i = 0; i < 3 + round % 20; ++i) {
                    const Lease lease = world.order.next();
                    world.check(lease, world.layers[i % 8]);
                }
                world.order.reset();
                if (round % 4 == 0) world.order.end();
            } catch (const Error& error) {
                if (error.code() != Errc::cancelled) ++world.wrong;
            }
        });
        if (world.order.size() > 0) {
            CHECK_OK(world.order.reset());
            CHECK_FAULT(world.order.next(), Errc::cancelled);
        }
        world.check_end();
    }
}

TEST_CASE("requests are waited for, asked and dropped while their uploader ends") {
    for (unsigned round = 0; round < rounds(400); ++round) {
        CAPTURE(round);
        World world(round, 6'000);
        std::vector<Lease> tickets;
        for (std::size_t i = 0; i < 5; ++i) tickets.push_back(world.uploader->request(world.bundles[i]));
        world.end_during(5, round * 11, [&](unsigned t) {
            Lease ticket = std::move(tickets[t]);
            if (t == 4) return;
            while (t == 3 && !ticket.ready()) std::this_thread::yield();
            try {
                ticket.wait();
                world.check(ticket, world.layers[t]);
            } catch (const Error& error) {
                if (error.code() != Errc::cancelled) ++world.wrong;
            }
        });
        world.check_end();
    }
}

TEST_CASE("bundles are dropped, and a neighbour under the same budget works, while an uploader ends") {
    for (unsigned round = 0; round < rounds(400); ++round) {
        CAPTURE(round);
        World world(round * 3, 5'000);
        const Bytes own("own", 2'000);
        const Bundle next = world.neighbour->bundle(std::vector{own.tensor});
        world.uploader->prefetch(world.bundles);
        std::vector<std::vector<Bundle>> handles(2);
        for (std::size_t i = 0; i < world.bundles.size(); ++i) handles[i % 2].push_back(std::move(world.bundles[i]));
        world.bundles.clear();
        world.end_during(3, round * 13, [&](unsigned t) {
            if (t < 2) return handles[t].clear();
            for (int i = 0; i < 3; ++i) {
                const Lease lease = world.neighbour->acquire(next);
                world.check(lease, own);
            }
        });
        world.check_end();
    }
}

TEST_CASE("capsules share leases that outlive their uploader") {
    for (unsigned round = 0; round < rounds(200); ++round) {
        CAPTURE(round);
        World world(round * 2, 4'000);
        auto lease = std::make_shared<Lease>(world.uploader->acquire(world.bundles[0]));
        auto* const capsule = dlpack::export_versioned(lease, lease->tensors()[0], {});
        lease.reset();
        world.end_during(1, round * 5, [&](unsigned) { capsule->deleter(capsule); });
        world.check_end();
    }
}

}  // namespace ends_test
