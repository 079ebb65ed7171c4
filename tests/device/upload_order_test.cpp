// Tests orders that are followed, sleep and wake.

#include "check_error.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/uploader.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace upload_order_test {

using namespace safemap;

namespace {

/// A model of layers, each with tensors of its own, and an uploader for it.
struct Model {
    std::shared_ptr<FakeDevice> fake = {};
    std::shared_ptr<Device> device;
    std::vector<Bytes> tensors = {};
    std::vector<std::uint64_t> sizes;
    Uploader uploader;
    std::vector<Bundle> layers = {};

    Model(std::vector<std::uint64_t> layer_sizes, std::uint64_t budget, bool staged = false)
        : fake(staged ? std::make_shared<FakeDevice>() : nullptr),
          device(staged ? fake : Device::open("host")),
          sizes(std::move(layer_sizes)),
          uploader(device, no_tensors(), {.device_budget = budget, .readers = 2}) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            tensors.emplace_back("layer" + std::to_string(i), sizes[i]);
            layers.push_back(uploader.bundle(std::span(&tensors.back().tensor, 1)));
        }
    }

    /// Returns true if the lease has layer `i`, with its bytes.
    bool has(const Lease& lease, std::size_t i) const {
        const DeviceTensor& tensor = lease.tensors()[0];
        if (tensor.name() != "layer" + std::to_string(i) || tensor.nbytes() != sizes[i]) return false;
        std::vector<std::byte> found(sizes[i]);
        device->copy_to_host(found, *tensor.memory(), tensor.offset());
        const std::uint64_t seed = std::hash<std::string>()(tensor.name());
        for (std::uint64_t at = 0; at < sizes[i]; ++at)
            if (found[at] != pattern(seed, at)) return false;
        return true;
    }
    std::uint64_t uploaded() const { return uploader.stats().uploaded_bytes; }
};

using Address = std::pair<const DeviceMemory*, std::uint64_t>;

Address address_of(const Lease& lease) { return {lease.tensors()[0].memory().get(), lease.tensors()[0].offset()}; }

std::uint64_t sum_of(const std::vector<std::uint64_t>& sizes) {
    std::uint64_t sum = 0;
    for (const std::uint64_t size : sizes) sum += size;
    return sum;
}

}  // namespace

TEST_CASE("a cycle of twice the budget uploads only what does not stay, and each layer keeps its address") {
    for (const bool staged : {false, true}) {
        for (const bool there_and_back : {false, true}) {
            CAPTURE(staged);
            CAPTURE(there_and_back);
            Model model(std::vector<std::uint64_t>(32, 10'000), 160'000, staged);
            std::vector<Bundle> bundles = model.layers;
            if (there_and_back) bundles.insert(bundles.end(), model.layers.rbegin(), model.layers.rend());
            UploadOrder stream = model.uploader.follow(bundles);
            const std::size_t steps = bundles.size();
            CHECK(stream.size() == steps);
            std::map<std::size_t, Address> addresses;
            std::uint64_t before = 0;
            for (int pass = 0; pass < 4; ++pass) {
                for (std::size_t step = 0; step < steps; ++step) {
                    CHECK(stream.upcoming() == step);
                    const std::size_t layer = step < 32 ? step : 63 - step;
                    const Lease lease = stream.next();
                    REQUIRE(model.has(lease, layer));
                    const auto [known, is_new] = addresses.try_emplace(layer, address_of(lease));
                    CHECK(known->second == address_of(lease));
                }
                CHECK(model.uploader.stats().peak_device_bytes <= 160'000);
                if (pass > 0 && !there_and_back)
                    CHECK(model.uploaded() - before <= 180'000 + 20'000);  // with the uploads ahead of the next pass
                before = model.uploaded();
            }
            // S - (B - W) = 320,000 - (160,000 - 20,000) a pass, and 140,000 that stay.
            if (!there_and_back) CHECK(model.uploaded() <= 140'000 + 4 * 180'000 + 20'000);
            CHECK(std::set<Address>([&] {
                      std::set<Address> all;
                      for (const auto& [layer, address] : addresses) all.insert(address);
                      return all;
                  }())
                      .size() == 16);
        }
    }
}

TEST_CASE("a model that fits is uploaded once") {
    Model model(std::vector<std::uint64_t>(10, 1000), 10'000);
    UploadOrder stream = model.uploader.follow(model.layers);
    for (std::size_t step = 0; step < 30; ++step) {
        const std::size_t layer = stream.upcoming();
        CHECK(layer == step % 10);
        CHECK(model.has(stream.next(), layer));
    }
    CHECK(model.uploaded() == 10'000);
    CHECK(model.uploader.stats().evictions == 0);
}

TEST_CASE("the next layer is on its way while this one is used") {
    Model model(std::vector<std::uint64_t>(6, 1000), 2000);  // nothing stays, two slots
    UploadOrder stream = model.uploader.follow(model.layers);
    for (std::size_t step = 0; step < 12; ++step) {
        const Lease lease = stream.next();
        const std::size_t next = stream.upcoming();
        const std::uint64_t reads = step / 6 + (next == 0 ? 1U : 0U) + 1;
        // The lease of the layer before has ended, so its slot is free for the next one.
        CHECK(soon([&] { return model.tensors[next].counted.reads() >= reads; }));
    }
    CHECK(model.uploader.stats().peak_device_bytes <= 2000);
}

TEST_CASE("leases that are held too long do not block the stream, if there is room") {
    Model model(std::vector<std::uint64_t>(8, 1000), 5000);
    UploadOrder stream = model.uploader.follow(model.layers);
    Lease held[3];
    for (std::size_t step = 0; step < 40; ++step) {
        const std::size_t layer = stream.upcoming();
        held[step % 3] = stream.next();
        CHECK(model.has(held[step % 3], layer));
    }
    // With everything leased that the budget holds, there is an error and no wait.
    std::vector<Lease> all;
    CHECK_FAULT(
        [&] {
            for (;;) all.push_back(stream.next());
        }(),
        Errc::budget_exceeded);
    const std::size_t refused = stream.upcoming();
    all.clear();
    for (Lease& one : held) one.release();
    CHECK(stream.upcoming() == refused);
    CHECK(model.has(stream.next(), refused));
}

TEST_CASE("random sizes: right bytes, never above the budget, and close to the least that has to be uploaded") {
    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
        CAPTURE(round);
        std::vector<std::uint64_t> sizes;
        for (int i = 0; i < 40; ++i) sizes.push_back(500 + random() % 500);
        const std::uint64_t total = sum_of(sizes);
        const std::uint64_t budget = total / 2;
        Model model(sizes, budget);
        UploadOrder stream = model.uploader.follow(model.layers);
        for (int pass = 0; pass < 3; ++pass) {
            const std::uint64_t before = model.uploaded();
            for (std::size_t i = 0; i < sizes.size(); ++i) CHECK(model.has(stream.next(), i));
            std::sort(sizes.begin(), sizes.end());
            const std::uint64_t window = sizes[38] + sizes[39];
            sizes = model.sizes;
            const std::uint64_t least = total - (budget - window);
            // Uploads ahead of the next pass count in this one.
            if (pass > 0) CHECK(model.uploaded() - before <= least + least / 50 + window);
        }
        CHECK(model.uploader.stats().peak_device_bytes <= budget);
    }
}

TEST_CASE("an order that cannot be followed is refused, and so is a second one while the first lives") {
    Model model({100, 100, 300, 250, 100}, 500);
    const auto follow = [&] { return model.uploader.follow(model.layers); };
    check_error(error_of(follow), {Errc::budget_exceeded}, {},
                {.message = "the order needs at least 550 bytes, but the budget is 500 bytes"});
    {
        UploadOrder order = model.uploader.follow(std::span(model.layers).first(2));
        check_error(error_of([&] { return model.uploader.follow_once(model.layers); }), {Errc::invalid_argument}, {},
                    {.message = "the uploader follows another order of 2 bundles; end that first"});
        CHECK(model.has(order.next(), 0));
        order.end();
        CHECK_OK(model.uploader.follow_once(model.layers));
    }
    Model other({100}, 500);
    CHECK_FAULT(model.uploader.follow(other.layers), Errc::invalid_argument);
    CHECK_OK(model.uploader.follow_once(model.layers));
}

TEST_CASE("an order that ended leaves nothing on the device that nobody has a handle of, also after its uploader") {
    for (int round = 0; round < soak::rounds(800); ++round) {
        CAPTURE(round);
        const bool uploader_first = round % 4 == 0;
        const auto fake = std::make_shared<FakeDevice>();
        std::optional<Uploader> uploader(std::in_place, fake, no_tensors(), UploadOptions{.device_budget = 4000});
        std::vector<Bytes> tensors;
        std::vector<Bundle> bundles;
        for (int i = 0; i < 8; ++i) {
            tensors.emplace_back("layer" + std::to_string(i), 1000);
            bundles.push_back(uploader->bundle(std::span(&tensors.back().tensor, 1)));
        }
        UploadOrder order = uploader->follow(bundles);
        bundles.clear();
        for (int i = 0; i < 20; ++i) CHECK_OK(order.next());
        CHECK(fake->allocated > 0);
        if (uploader_first) uploader.reset();
        order.end();
        CHECK(order.size() == 0);
        if (uploader) CHECK(uploader->stats().resident_bytes == 0);
        CHECK(fake->allocated == 0);
    }
}

TEST_CASE("an order begins again where reset() says, also one that is followed once") {
    for (const bool cyclic : {true, false}) {
        CAPTURE(cyclic);
        Model model(std::vector<std::uint64_t>(6, 1000), 3000);
        UploadOrder order = cyclic ? model.uploader.follow(model.layers) : model.uploader.follow_once(model.layers);
        for (int round = 0; round < 3; ++round) {
            for (std::size_t i = 0; i < 6; ++i) CHECK(model.has(order.next(), i));
            CHECK(order.upcoming() == (cyclic ? 0U : 6U));
            if (cyclic) CHECK(model.has(order.next(), 0));
            else CHECK_FAULT(order.next(), Errc::invalid_argument);
            order.reset();
            CHECK(order.upcoming() == 0);
        }
        CHECK(model.uploader.stats().peak_device_bytes <= 3000);
    }
}

TEST_CASE("a step is waited for no longer than its request says, and comes again") {
    Model model(std::vector<std::uint64_t>(3, 1000), 2000);
    for (const Bytes& tensor : model.tensors) tensor.counted.hold();
    UploadOrder order = model.uploader.follow(model.layers);
    const auto soon_over = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    CHECK_FAULT(order.next({}, {.deadline = soon_over}), Errc::deadline_passed);
    CHECK(order.upcoming() == 0);
    for (const Bytes& tensor : model.tensors) tensor.counted.go_on();
    CHECK(model.has(order.next(), 0));
}

TEST_CASE("a plan that is not cyclic uploads each bundle once, ahead of its use, and used ones make way") {
    Model model(std::vector<std::uint64_t>(20, 100), 500);
    const UploadOrder order = model.uploader.follow_once(model.layers);
    CHECK(soon([&] { return model.uploader.stats().resident_bytes == 500; }));
    CHECK(model.uploaded() == 500);
    for (std::size_t i = 0; i < 20; ++i) {
        CHECK(model.has(model.uploader.acquire(model.layers[i]), i));
    }
    CHECK(model.uploaded() == 2000);
    CHECK(model.uploader.stats().peak_device_bytes <= 500);
    for (const Bytes& tensor : model.tensors) CHECK(tensor.counted.bytes() == 100);
}

TEST_CASE("the last pass of a cycle, as a plan that is not cyclic, uploads nothing for a next one") {
    for (const std::uint64_t budget : {200U, 300U, 500U, 700U, 1000U}) {
        CAPTURE(budget);
        Model model(std::vector<std::uint64_t>(10, 100), budget);
        UploadOrder order = model.uploader.follow(model.layers);
        for (std::size_t pass = 0; pass < 4; ++pass) {
            if (pass == 3) {
                order.end();
                order = model.uploader.follow_once(model.layers);
            }
            for (std::size_t i = 0; i < 10; ++i) CHECK(model.has(model.uploader.acquire(model.layers[i]), i));
        }
        const std::uint64_t a_pass = budget == 1000 ? 0 : 1000 - (budget - 200);  // S - (B - W)
        CHECK(model.uploaded() == 1000 + 3 * a_pass);
        CHECK(model.uploader.stats().peak_device_bytes <= budget);
    }
}

TEST_CASE("a plan that is not cyclic keeps what is there until it is used, as far as two others fit beside it") {
    Model model(std::vector<std::uint64_t>(10, 100), 500);
    for (std::size_t i = 5; i < 10; ++i) CHECK_OK(model.uploader.acquire(model.layers[i]));
    const UploadOrder order = model.uploader.follow_once(model.layers);
    for (const std::size_t i : {0U, 1U}) CHECK(soon([&] { return model.tensors[i].counted.reads() == 1; }));
    for (std::size_t i = 0; i < 10; ++i) CHECK(model.has(model.uploader.acquire(model.layers[i]), i));
    for (std::size_t i = 0; i < 10; ++i) CHECK(model.tensors[i].counted.bytes() == (i < 8 ? 100 : 200));
    CHECK(model.uploader.stats().peak_device_bytes <= 500);
}

TEST_CASE("bundles outside a plan can be acquired while it is followed, and the plan recovers") {
    Model model(std::vector<std::uint64_t>(10, 100), 500);
    const Bytes large("large", 450);
    const Bundle other = model.uploader.bundle(std::span(&large.tensor, 1));
    UploadOrder stream = model.uploader.follow(model.layers);
    for (std::size_t step = 0; step < 60; ++step) {
        const std::size_t layer = stream.upcoming();
        CHECK(model.has(stream.next(), layer));
        if (step % 7 == 3) CHECK_OK(model.uploader.acquire(other));
    }
    CHECK(model.uploader.stats().peak_device_bytes <= 500);
    const std::uint64_t before = model.uploaded();
    for (std::size_t step = 0; step < 10; ++step) CHECK_OK(stream.next());
    CHECK(model.uploaded() - before <= 1000 + 200);  // with what is ahead of the next pass
}

TEST_CASE("a read error fails the layer, not the stream") {
    Model model(std::vector<std::uint64_t>(6, 100), 300);
    UploadOrder stream = model.uploader.follow(model.layers);
    for (std::size_t step = 0; step < 60; ++step) {
        if (step % 5 == 2) model.tensors[(step + step / 5) % 6].counted.fail_after(0);
        const std::size_t layer = stream.upcoming();
        std::optional<Lease> lease;
        const auto error = error_of([&] { lease = stream.next(); });
        if (error) {
            CHECK(error->code() == Errc::io_error);
            CHECK(error->tensor() == "layer" + std::to_string(layer));
            for (const Bytes& tensor : model.tensors) tensor.counted.fail_after(-1);
            CHECK(stream.upcoming() == layer);
            // A prefetch of the same layer may have failed, too, before there were no more faults.
            if (error_of([&] { lease = stream.next(); })) lease = stream.next();
        }
        CHECK(model.has(*lease, layer));
    }
    CHECK(model.uploader.stats().peak_device_bytes <= 300);
}

TEST_CASE("evicting a bundle gives back the memory of its slot, and the plan goes on") {
    Model model(std::vector<std::uint64_t>(6, 1000), 2000, true);  // nothing stays, two slots
    UploadOrder stream = model.uploader.follow(model.layers);
    for (std::size_t step = 0; step < 24; ++step) {
        const std::size_t layer = stream.upcoming();
        CHECK(model.has(stream.next(), layer));
        if (step % 5 == 4) {
            for (const Bundle& bundle : model.layers) model.uploader.evict(bundle);
            CHECK(model.fake->peak <= 2000);
        }
    }
    stream.end();
    CHECK(soon([&] {
        for (const Bundle& bundle : model.layers) model.uploader.evict(bundle);
        return model.fake->allocated == 0;
    }));
}

TEST_CASE("sleep gives back all memory but that of leases, and wake brings it back in order") {
    for (const bool with_plan : {false, true}) {
        CAPTURE(with_plan);
        Model model(std::vector<std::uint64_t>(10, 1000), 6000, true);
        UploadOrder order;
        if (with_plan) order = model.uploader.follow(model.layers);
        Lease held;
        for (std::size_t i = 0; i < 6; ++i) {
            Lease lease = model.uploader.acquire(model.layers[i]);
            if (i == 2) held = std::move(lease);
        }
        CHECK(model.uploader.sleep() == 1000);
        CHECK(model.fake->allocated == 1000);
        CHECK(model.uploader.stats().resident_bytes == 1000);
        CHECK(model.has(held, 2));

        // It can be used while it sleeps.
        CHECK(model.has(model.uploader.acquire(model.layers[7]), 7));
        CHECK(model.uploader.sleep() == 1000);
        model.uploader.wake();
        // With a plan: what stays, and is used before a layer whose slot is taken.
        CHECK(soon([&] { return model.uploader.stats().resident_bytes >= (with_plan ? 3000U : 6000U); }));
        for (std::size_t i = 0; i < 10; ++i) CHECK(model.has(model.uploader.acquire(model.layers[i]), i));
        CHECK(model.uploader.stats().peak_device_bytes <= 6000);
        CHECK(model.fake->peak <= 6000);
    }
}

TEST_CASE("sleep during prefetches leaves nothing on the device, and names that were acquired come back") {
    for (int delay = 0; delay < 5; ++delay) {
        Model model(std::vector<std::uint64_t>(20, 50'000), 2'000'000, true);
        model.fake->copy_microseconds = 200;
        model.uploader.prefetch(model.layers);
        std::this_thread::sleep_for(std::chrono::milliseconds(delay));
        CHECK(model.uploader.sleep() == 0);
        CHECK(model.fake->allocated == 0);
        CHECK(model.uploader.stats().resident_bytes == 0);
        model.uploader.wake();
        CHECK(model.has(model.uploader.acquire(model.layers[3]), 3));
    }
}

TEST_CASE("threads may stream, sleep, wake and follow other plans at the same time") {
    for (unsigned seed = 0; seed < 4; ++seed) {
        Model model(std::vector<std::uint64_t>(12, 1000), 6000, seed % 2 == 1);
        std::atomic<int> wrong = 0;
        std::mutex mutex;
        UploadOrder order;
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 3; ++t)
            threads.emplace_back([&, t] {
                std::mt19937 random(seed * 10 + t);
                for (int step = 0; step < 200; ++step) {
                    const std::size_t layer = (static_cast<std::size_t>(step) + t * 4) % 12;
                    try {
                        if (!model.has(model.uploader.acquire(model.layers[layer]), layer)) ++wrong;
                    } catch (const Error& error) {
                        if (error.code() != Errc::budget_exceeded) ++wrong;
                    }
                    if (random() % 40 == 0) model.uploader.sleep();
                    if (random() % 20 == 0) model.uploader.wake();
                    if (random() % 20 > 0) continue;
                    const std::lock_guard lock(mutex);
                    order.end();
                    const auto kind = random() % 3;
                    if (kind == 1) order = model.uploader.follow(model.layers);
                    if (kind == 2) order = model.uploader.follow_once(model.layers);
                }
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(wrong == 0);
        CHECK(model.uploader.stats().peak_device_bytes <= 6000);
        if (model.fake) CHECK(model.fake->peak <= 6000);
    }
}

}  // namespace upload_order_test
