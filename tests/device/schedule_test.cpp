// Random schedules of several threads on one engine: values are always right, and the budget is never exceeded.

#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "device/upload_engine.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/device.hpp>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace safemap;
using device::Keep;
using device::LeasedTensors;
using device::UploadEngine;

namespace {

constexpr std::uint64_t budget = 40'000;

/// Findings of the threads, checked after they end.
struct Findings {
    std::atomic<int> wrong_values = 0;
    std::atomic<int> over_budget = 0;
    std::atomic<int> strange_errors = 0;
    std::atomic<int> acquired = 0;
    std::atomic<int> refused = 0;
    std::atomic<int> failed = 0;
};

struct World {
    std::shared_ptr<Device> device;
    std::shared_ptr<FakeDevice> fake;  // the same device, if it is a fake
    std::shared_ptr<UploadEngine> engine;
    std::vector<Bytes> stored;
    std::vector<LazyTensor> tensors;

    World(bool staged, unsigned readers) : device(Device::open("host")) {
        if (staged) device = fake = std::make_shared<FakeDevice>();
        engine = std::make_shared<UploadEngine>(
            device, UploadOptions{.device_budget = budget, .staging_bytes = 12'288, .readers = readers});
        constexpr std::uint64_t sizes[] = {0, 1, 100, 4096, 5000, 8192, 9000, 12'000, 20'000, 40'000, 40'001};
        for (const std::uint64_t size : sizes) {
            stored.emplace_back("t" + std::to_string(stored.size()), size);
            tensors.push_back(stored.back().tensor);
        }
        // A tied tensor, and a view that is read in tiles.
        tensors.push_back(tensors[4].renamed("tied"));
        const auto& square = tensors[9];
        tensors.push_back({"transposed", square.stored(), StridedView{{200, 200}, {1, 200}, 0}});
    }
};

void check_values(const World& world, const LeasedTensors& held, Findings& findings) {
    for (const DeviceTensor& tensor : held.tensors()) {
        const auto lazy = std::ranges::find(world.tensors, tensor.name, [](const LazyTensor& t) { return t.name(); });
        std::vector<std::byte> expected(tensor.nbytes);
        std::vector<std::byte> found(tensor.nbytes);
        world.device->copy_to_host(found, *tensor.memory, 0);
        // Not read through the source, because its reads are counted.
        const std::uint64_t seed = std::hash<std::string>()(tensor.name == "tied"         ? "t4"
                                                            : tensor.name == "transposed" ? "t9"
                                                                                          : tensor.name);
        const StridedView view = lazy->strided_view();
        for (std::uint64_t i = 0; i < expected.size(); ++i) {
            const std::uint64_t at = view.shape.size() == 1 ? i : i / 200 + i % 200 * 200;
            expected[i] = pattern(seed, at);
        }
        if (found != expected) ++findings.wrong_values;
    }
}

void act_randomly(World& world, unsigned seed, int steps, bool with_faults, Findings& findings) {
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<LeasedTensors>> leases;
    const auto some = [&] {
        std::vector<LazyTensor> chosen;
        const std::size_t count = 1 + random() % 3;
        for (std::size_t i = 0; i < count; ++i) chosen.push_back(world.tensors[random() % world.tensors.size()]);
        return chosen;
    };
    for (int step = 0; step < steps; ++step) {
        if (with_faults && random() % 8 == 0) {
            const auto& unlucky = world.stored[random() % world.stored.size()];
            unlucky.counted.fail_after(static_cast<std::int64_t>(random() % 4));
        }
        switch (random() % 6) {
            case 0:
            case 1:
                try {
                    auto held = world.engine->acquire(some(), random() % 4 == 0 ? Keep::no : Keep::yes);
                    check_values(world, *held, findings);
                    ++findings.acquired;
                    if (random() % 2 == 0) leases.push_back(std::move(held));
                } catch (const Error& error) {
                    if (error.code() == Errc::budget_exceeded) ++findings.refused;
                    else if (error.code() == Errc::io_error && with_faults) ++findings.failed;
                    else ++findings.strange_errors;
                }
                break;
            case 2: world.engine->prefetch(some()); break;
            case 3: world.engine->evict(some()); break;
            default:
                if (!leases.empty())
                    leases.erase(leases.begin() + static_cast<std::ptrdiff_t>(random() % leases.size()));
        }
        // A lease still has its values, whatever other threads did.
        if (!leases.empty()) check_values(world, *leases[random() % leases.size()], findings);
        const auto stats = world.engine->stats();
        if (stats.peak_device_bytes > budget || stats.resident_bytes > budget) ++findings.over_budget;
        if (world.fake && world.fake->peak > budget) ++findings.over_budget;
    }
}

void run_schedule(unsigned seed, bool staged, bool with_faults) {
    World world(staged, 1 + seed % 3);
    if (staged) world.fake->copy_microseconds = static_cast<int>(seed % 3) * 30;
    Findings findings;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] { act_randomly(world, seed * 100 + t, 60, with_faults, findings); });
    for (std::thread& thread : threads) thread.join();

    CHECK(findings.wrong_values == 0);
    CHECK(findings.over_budget == 0);
    CHECK(findings.strange_errors == 0);
    CHECK(findings.acquired > 0);

    // No lease is left, so that each tensor fits again.
    for (const Bytes& bytes : world.stored) bytes.counted.fail_after(-1);
    for (const LazyTensor& tensor : world.tensors) {
        if (tensor.nbytes() > budget) continue;
        // A fault of a prefetch may still be pending; it is thrown once.
        const auto once = [&] { return world.engine->acquire(std::span(&tensor, 1), Keep::yes); };
        if (const auto fault = error_of(once)) CHECK(fault->code() == Errc::io_error);
        CHECK_OK(once());
    }
    const auto stats = world.engine->stats();
    CHECK(stats.peak_device_bytes <= budget);
    if (!with_faults) {
        // Every byte that was read has been uploaded.
        std::uint64_t read = 0;
        for (const Bytes& bytes : world.stored) read += bytes.counted.bytes();
        CHECK(stats.bytes_pread == stats.uploaded_bytes);
        CHECK(stats.uploaded_bytes <= read);
    }
    world.engine->stop();
    if (staged) {
        CHECK_FALSE(world.fake->staging_was_touched);
        CHECK(world.fake->allocated == 0);
    }
}

}  // namespace

TEST_CASE("random schedules on the host") {
    for (unsigned seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        run_schedule(seed, false, false);
    }
}

TEST_CASE("random schedules through staging buffers") {
    for (unsigned seed = 0; seed < 12; ++seed) {
        CAPTURE(seed);
        run_schedule(seed, true, false);
    }
}

TEST_CASE("random schedules with reads that fail") {
    for (unsigned seed = 0; seed < 16; ++seed) {
        CAPTURE(seed);
        run_schedule(seed, seed % 2 == 0, true);
    }
}

TEST_CASE("kept tensors are read again only after they were evicted") {
    for (unsigned seed = 0; seed < 8; ++seed) {
        CAPTURE(seed);
        const auto engine =
            std::make_shared<UploadEngine>(Device::open("host"), UploadOptions{.device_budget = 500, .readers = 2});
        std::vector<Bytes> tensors;
        for (int i = 0; i < 10; ++i) tensors.emplace_back("t" + std::to_string(i), 100);
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 3; ++t)
            threads.emplace_back([&, t] {
                std::mt19937 random(seed * 10 + t);
                for (int step = 0; step < 200; ++step) {
                    const LazyTensor& tensor = tensors[random() % tensors.size()].tensor;
                    if (random() % 3 == 0) engine->prefetch(std::span(&tensor, 1));
                    else engine->acquire(std::span(&tensor, 1), Keep::yes);
                }
            });
        for (std::thread& thread : threads) thread.join();
        std::uint64_t reads = 0;
        for (const Bytes& tensor : tensors) reads += tensor.counted.reads();
        const auto stats = engine->stats();
        CHECK(reads >= 10);
        CHECK(reads <= 10 + stats.evictions);
        CHECK(stats.peak_device_bytes <= 500);
    }
}
