// Tests uploads to the host and to a fake device. From top to bottom: values of every kind of tensor, residency and
// shared memory, budget and eviction, faults of reads, devices and copies, prefetch, evict, and the end of an engine.
#include "device/upload_engine.hpp"

#include "device/counted.hpp"
#include "device/fake_device.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/device.hpp>

#include <algorithm>
#include <filesystem>
#include <future>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace safemap;
using device::Keep;
using device::LeasedTensors;
using device::UploadEngine;

namespace {

std::shared_ptr<UploadEngine> engine_on(std::shared_ptr<Device> device, std::uint64_t budget, unsigned readers = 2) {
    return std::make_shared<UploadEngine>(std::move(device),
                                          UploadOptions{.device_budget = budget, .readers = readers});
}

std::shared_ptr<LeasedTensors> acquire(const std::shared_ptr<UploadEngine>& engine, const LazyTensor& tensor,
                                       Keep keep = Keep::yes) {
    return engine->acquire(std::span(&tensor, 1), keep);
}

std::vector<std::byte> read_back(Device& device, const DeviceTensor& tensor) {
    std::vector<std::byte> bytes(tensor.nbytes);
    device.copy_to_host(bytes, *tensor.memory, 0);
    return bytes;
}

std::vector<std::byte> value_of(const LazyTensor& tensor) {
    std::vector<std::byte> bytes(tensor.nbytes());
    tensor.read(0, bytes);
    return bytes;
}

/// Waits until `condition` is true, for effects of other threads.
template <class Condition> bool soon(Condition&& condition) {
    for (int i = 0; i < 60'000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

/// Returns one tensor of each kind that is cut into blocks in a different way.
std::vector<LazyTensor> all_kinds() {
    const Counted large(1, 20_MiB + 12);
    const Counted square(2, 900 * 1100 * 4);
    const Counted small(3, 4096);
    const auto floats = large.tensor("range", Dtype::f32, {(5_MiB + 3)});
    const auto matrix = square.tensor("matrix", Dtype::f32, {900, 1100});
    const LazyTensor transposed("transposed", matrix.stored(), StridedView{{1100, 900}, {1, 1100}, 0});
    return {
        floats,
        floats.cast(Dtype::bf16).renamed("cast"),
        transposed,
        transposed.cast(Dtype::f16).renamed("transposed_cast"),
        transposed.slice({{.start = 3, .stop = 1000, .step = 3}, {.start = 800, .stop = 2, .step = -1}}).renamed("odd"),
        matrix.slice({{.start = 10, .stop = 20}}).renamed("rows"),
        matrix.slice({Slice::at(7), Slice::at(9)}).renamed("scalar"),
        LazyTensor("broadcast", matrix.stored(), StridedView{{600, 900}, {0, 1}, 5}),
        LazyTensor("swapped", matrix.stored(), Decoding{.byte_swap = true}),
        small.tensor("f4", Dtype::f4, {3, 8}),
        small.tensor("f6", Dtype::f6_e2m3, {5, 4}),
        small.tensor("empty", Dtype::f32, {0, 7}),
    };
}

}  // namespace

TEST_CASE("tensors of every kind arrive on the host") {
    const auto host = Device::open("host");
    const auto engine = engine_on(host, 200_MiB);
    const auto tensors = all_kinds();
    const auto held = engine->acquire(tensors, Keep::yes);
    REQUIRE(held->tensors().size() == tensors.size());
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        CAPTURE(tensors[i].name());
        const DeviceTensor& tensor = held->tensors()[i];
        CHECK(tensor.name == tensors[i].name());
        CHECK(tensor.dtype == tensors[i].dtype());
        CHECK(tensor.shape == tensors[i].shape());
        CHECK(tensor.nbytes == tensors[i].nbytes());
        CHECK(tensor.memory->size() == tensor.nbytes);
        CHECK(read_back(*host, tensor) == value_of(tensors[i]));
        total += tensor.nbytes;
    }
    const auto stats = engine->stats();
    CHECK(stats.uploaded_bytes == total);
    CHECK(stats.resident_bytes == total);
    CHECK(stats.peak_device_bytes == total);
    CHECK(stats.peak_staging_bytes == 0);
    CHECK(stats.bytes_direct == 0);
    CHECK(stats.stalled.count() > 0);
    // A cast reads the stored elements: 20 MiB for 10 MiB of bf16.
    CHECK(stats.bytes_pread == total + tensors[1].nbytes() + tensors[3].nbytes());
}

TEST_CASE("tensors of every kind arrive on a device without direct access") {
    const auto fake = std::make_shared<FakeDevice>();
    fake->copy_microseconds = 5;
    const auto tensors = all_kinds();
    for (const std::uint64_t staging : {4_KiB, 300_KB, 16_MiB}) {
        CAPTURE(staging);
        const auto engine = std::make_shared<UploadEngine>(
            fake, UploadOptions{.device_budget = 200_MiB, .staging_bytes = staging, .readers = 3});
        // Small buffers mean many copies, so only small tensors are used then.
        for (int i = soak::step(2) - 1; i < static_cast<int>(tensors.size()); i += soak::step(3)) {
            const LazyTensor& tensor = tensors[static_cast<std::size_t>(i)];
            if (staging == 4_KiB && tensor.nbytes() > 1_MB) continue;
            CAPTURE(tensor.name());
            const auto held = acquire(engine, tensor);
            CHECK(read_back(*fake, held->tensors()[0]) == value_of(tensor));
        }
        CHECK(engine->stats().peak_staging_bytes <= staging);
        if (engine->stats().uploaded_bytes > 0) CHECK(engine->stats().peak_staging_bytes > 0);
    }
    CHECK_FALSE(fake->staging_was_touched);
    CHECK(fake->allocated == 0);
}

TEST_CASE("a resident tensor is read once, and a lease finds its tensors by name") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes a("a", 40);
    const Bytes b("b", 60);
    const std::vector<LazyTensor> both = {b.tensor, a.tensor};
    const auto first = engine->acquire(both, Keep::yes);
    const auto second = acquire(engine, a.tensor);
    CHECK(a.counted.bytes() == 40);
    CHECK(b.counted.bytes() == 60);
    CHECK(first->find("a")->memory == second->find("a")->memory);
    CHECK(first->find("b") == &first->tensors()[0]);
    CHECK(first->find("c") == nullptr);
    CHECK(second->find("b") == nullptr);
    CHECK(engine->stats().uploaded_bytes == 100);
}

TEST_CASE("tied tensors share memory, each under its name") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes embed("embed", 100);
    const std::vector<LazyTensor> tied = {embed.tensor, embed.tensor.renamed("lm_head")};
    const auto held = engine->acquire(tied, Keep::yes);
    CHECK(held->find("embed")->memory == held->find("lm_head")->memory);
    CHECK(embed.counted.bytes() == 100);
    CHECK(engine->stats().peak_device_bytes == 100);
}

TEST_CASE("a different view, dtype or decoding of the same bytes is a different tensor") {
    const auto engine = engine_on(Device::open("host"), 1000);
    const Counted counted(1, 64);
    const auto whole = counted.tensor("t", Dtype::f32, {4, 4});
    const std::vector<LazyTensor> tensors = {
        whole,
        whole.cast(Dtype::f16),
        whole.slice({{.start = 0, .stop = 2}}),
        whole.slice({{.start = 2, .stop = 4}}),
        LazyTensor("t", whole.stored(), StridedView{{4, 4}, {1, 4}, 0}),
        LazyTensor("t", whole.stored(), Decoding{.neg = true}),
        LazyTensor("t", whole.stored(), StridedView{{2, 2, 4}, {8, 4, 1}, 0}),
    };
    const auto held = engine->acquire(tensors, Keep::yes);
    for (std::size_t i = 0; i < tensors.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) CHECK(held->tensors()[i].memory != held->tensors()[j].memory);
}

TEST_CASE("the least recently used tensors that are not leased are evicted") {
    const auto engine = engine_on(Device::open("host"), 30);
    const Bytes a("a", 10);
    const Bytes b("b", 10);
    const Bytes c("c", 10);
    const Bytes d("d", 10);
    acquire(engine, a.tensor);
    auto b_held = acquire(engine, b.tensor);
    acquire(engine, c.tensor);
    acquire(engine, a.tensor);
    acquire(engine, d.tensor);  // b is leased, c was used before a
    acquire(engine, a.tensor);
    CHECK(a.counted.bytes() == 10);
    acquire(engine, c.tensor);  // evicts d
    CHECK(c.counted.bytes() == 20);
    b_held.reset();
    acquire(engine, b.tensor);
    CHECK(b.counted.bytes() == 10);
    CHECK(engine->stats().evictions == 2);
    CHECK(engine->stats().peak_device_bytes == 30);
}

TEST_CASE("the budget can be filled to the last byte, and empty tensors always fit") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes exact("exact", 100);
    const Bytes empty("empty", 0);
    const Bytes one("one", 1);
    const auto all = acquire(engine, exact.tensor);
    CHECK_OK(acquire(engine, empty.tensor));
    CHECK(acquire(engine, empty.tensor)->tensors()[0].memory != nullptr);
    CHECK_FAULT(acquire(engine, one.tensor), Errc::budget_exceeded);
}

TEST_CASE("acquire does not wait for leased memory, and the error states how much is leased") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 50);
    auto held = acquire(engine, a.tensor);
    const auto error = error_of([&] { acquire(engine, b.tensor); });
    REQUIRE(error);
    CHECK(error->code() == Errc::budget_exceeded);
    CHECK(error->message() == "50 bytes needed at once, 60 bytes already leased, but the budget is 100 bytes");
    CHECK(b.counted.reads() == 0);
    held.reset();
    CHECK_OK(acquire(engine, b.tensor));
    CHECK(engine->stats().resident_bytes == 50);
}

TEST_CASE("a tensor larger than the budget is refused with its name, and a selection with its total size") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes large("large", 101);
    const auto error = error_of([&] { acquire(engine, large.tensor); });
    REQUIRE(error);
    CHECK(error->code() == Errc::budget_exceeded);
    CHECK(error->tensor() == "large");

    const Bytes a("a", 60);
    const Bytes b("b", 60);
    const std::vector<LazyTensor> both = {a.tensor, b.tensor};
    CHECK_FAULT(engine->acquire(both, Keep::yes), Errc::budget_exceeded);
    CHECK(a.counted.reads() == 0);
    CHECK_OK(acquire(engine, a.tensor));  // nothing is still leased
    CHECK_OK(acquire(engine, b.tensor));
}

TEST_CASE("a total size beyond 64 bits is refused") {
    const auto engine = engine_on(Device::open("host"), UINT64_MAX);
    const Counted counted(1, 1);
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 20; ++i)
        tensors.emplace_back("huge", counted.tensor("base", Dtype::u8, {1}).stored(),
                             StridedView{{(std::uint64_t{1} << 60) - i}, {0}, 0});
    CHECK_FAULT(engine->acquire(tensors, Keep::yes), Errc::budget_exceeded);
    CHECK(counted.reads() == 0);
}

TEST_CASE("two threads that acquire the same tensor read it once") {
    const auto engine = engine_on(Device::open("host"), 30_MiB, 1);
    const Bytes large("large", 20_MiB);
    large.counted.slow(1000);
    std::vector<std::future<const void*>> handles;
    for (int i = 0; i < 4; ++i)
        handles.push_back(std::async(std::launch::async, [&] {
            return static_cast<const void*>(acquire(engine, large.tensor)->tensors()[0].memory->handle());
        }));
    const void* const first = handles[0].get();
    for (std::size_t i = 1; i < handles.size(); ++i) CHECK(handles[i].get() == first);
    CHECK(large.counted.bytes() == 20_MiB);
}

TEST_CASE("a failed read is thrown by acquire, frees its memory, and can be repeated") {
    for (const bool staged : {false, true}) {
        CAPTURE(staged);
        const auto fake = std::make_shared<FakeDevice>();
        const auto engine = engine_on(staged ? fake : Device::open("host"), 40_MiB);
        const Bytes large("large", 33_MiB);
        for (std::int64_t nth = 0; nth < 5; ++nth) {
            CAPTURE(nth);
            large.counted.fail_after(nth);
            const auto error = error_of([&] { acquire(engine, large.tensor); });
            REQUIRE(error);
            CHECK(error->code() == Errc::io_error);
            CHECK(error->tensor() == "large");
            CHECK(engine->stats().resident_bytes == 0);
            CHECK(fake->allocated == 0);
        }
        large.counted.fail_after(-1);
        CHECK_OK(acquire(engine, large.tensor));
        CHECK(engine->stats().uploaded_bytes == 33_MiB);
    }
}

TEST_CASE("an exception of another type reaches the caller unchanged") {
    const auto engine = engine_on(Device::open("host"), 100);
    const auto source = callback_source("odd", 4, [](std::uint64_t, std::span<std::byte>) { throw 42; });
    const LazyTensor tensor("t", stored_run(Dtype::u8, {4}, source, 0));
    CHECK_THROWS_AS(acquire(engine, tensor), int);
    CHECK(engine->stats().resident_bytes == 0);
}

TEST_CASE("a fault of one tensor does not affect the others of a selection") {
    const auto engine = engine_on(Device::open("host"), 100, 1);
    const Bytes good("good", 10);
    const Bytes bad("bad", 10);
    bad.counted.fail_after(0);
    const std::vector<LazyTensor> both = {good.tensor, bad.tensor};
    CHECK_FAULT(engine->acquire(both, Keep::yes), Errc::io_error);
    CHECK_OK(acquire(engine, good.tensor));
    CHECK(good.counted.bytes() == 10);
    CHECK_OK(engine->acquire(both, Keep::yes));
}

TEST_CASE("a full device or a failed copy affects only the tensor concerned") {
    const auto fake = std::make_shared<FakeDevice>();
    const auto engine = engine_on(fake, 100_MiB);
    const Bytes tensor("t", 20_MiB);
    fake->fail_allocation = 0;
    CHECK_FAULT(acquire(engine, tensor.tensor), Errc::out_of_memory);
    for (int nth = 0; nth < 3; ++nth) {
        CAPTURE(nth);
        fake->fail_copy = nth;
        const auto error = error_of([&] { acquire(engine, tensor.tensor); });
        REQUIRE(error);
        CHECK(error->code() == Errc::io_error);
        CHECK(error->tensor() == "t");
        CHECK(fake->allocated == 0);
    }
    const auto held = acquire(engine, tensor.tensor);
    CHECK(read_back(*fake, held->tensors()[0]) == value_of(tensor.tensor));
    CHECK(engine->stats().uploaded_bytes == 20_MiB);
}

TEST_CASE("memory is not freed while a copy is running, even if the state of another copy is unknown") {
    const auto fake = std::make_shared<FakeDevice>();
    const Bytes tensor("t", 16_MiB);
    fake->copy_microseconds = 20'000;
    for (std::int64_t nth = 0; nth < 4; ++nth) {
        CAPTURE(nth);
        const auto engine = std::make_shared<UploadEngine>(
            fake, UploadOptions{.device_budget = 20_MiB, .staging_bytes = 32_MiB, .readers = 1});
        fake->pause(true);
        fake->copies = 0;
        *fake->fail_done = nth;
        engine->prefetch(std::span(&tensor.tensor, 1));  // one reader uploads one block after the other
        for (int i = 0; i < 300 && fake->copies < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        fake->pause(false);
        std::shared_ptr<LeasedTensors> held;
        const auto error = error_of([&] { held = acquire(engine, tensor.tensor); });
        if (held) CHECK(read_back(*fake, held->tensors()[0]) == value_of(tensor.tensor));
        held.reset();
        engine->evict(std::span(&tensor.tensor, 1));
        CHECK(fake->allocated == 0);  // would not be 0 if a copy were still running
        if (error) CHECK(error->message() == "nobody knows");
    }
}

TEST_CASE("at most sixteen readers are started") {
    const auto threads = [] {
        const std::filesystem::directory_iterator tasks("/proc/self/task");
        return std::distance(begin(tasks), end(tasks));
    };
    const auto before = threads();
    const auto engine = engine_on(Device::open("host"), 100, 1024);
    const Bytes a("a", 60);
    engine->prefetch(std::span(&a.tensor, 1));
    CHECK(threads() > before);
    CHECK(threads() <= before + 16);
}

TEST_CASE("prefetch uploads what fits, while nobody waits for it") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 50);
    const Bytes c("c", 40);
    const std::vector<LazyTensor> all = {a.tensor, b.tensor, c.tensor};
    engine->prefetch(all);
    CHECK(soon([&] { return engine->stats().resident_bytes == 100; }));
    CHECK(b.counted.reads() == 0);
    acquire(engine, a.tensor);
    acquire(engine, c.tensor);
    CHECK(a.counted.bytes() == 60);
    CHECK(c.counted.bytes() == 40);
    CHECK(engine->stats().stalled.count() == 0);
    CHECK(engine->stats().evictions == 0);

    // A repeated prefetch keeps what is resident.
    engine->prefetch(all);
    CHECK(engine->stats().evictions == 0);
    // Another prefetch replaces it.
    engine->prefetch(std::span(&b.tensor, 1));
    CHECK(soon([&] { return b.counted.bytes() == 50; }));
    CHECK(engine->stats().evictions == 1);
}

TEST_CASE("prefetch does not evict leased tensors") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes a("a", 60);
    const Bytes b("b", 50);
    const auto held = acquire(engine, a.tensor);
    engine->prefetch(std::span(&b.tensor, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(b.counted.reads() == 0);
    CHECK(engine->stats().resident_bytes == 60);
}

TEST_CASE("a fault of a prefetch is thrown by the next acquire, once") {
    const auto engine = engine_on(Device::open("host"), 100);
    const Bytes bad("bad", 10);
    const Bytes good("good", 10);
    bad.counted.fail_after(0);
    const std::vector<LazyTensor> both = {bad.tensor, good.tensor};
    engine->prefetch(both);
    CHECK(soon([&] { return engine->stats().resident_bytes == 10 && bad.counted.reads() == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    engine->prefetch(both);
    CHECK_OK(acquire(engine, good.tensor));
    const auto error = error_of([&] { acquire(engine, bad.tensor); });
    REQUIRE(error);
    CHECK(error->code() == Errc::io_error);
    CHECK(error->tensor() == "bad");
    CHECK(bad.counted.reads() == 1);
    CHECK_OK(acquire(engine, bad.tensor));
    CHECK(bad.counted.reads() == 2);
}

TEST_CASE("acquire has priority over prefetches, and cancels prefetches that need its memory") {
    const auto engine = engine_on(Device::open("host"), 1000, 1);
    std::vector<Bytes> layers;
    std::vector<LazyTensor> all;
    for (int i = 0; i < 10; ++i) {
        layers.emplace_back("layer" + std::to_string(i), 100);
        all.push_back(layers.back().tensor);
    }
    const Bytes urgent("urgent", 900);
    layers[0].counted.hold();
    engine->prefetch(all);
    REQUIRE(soon([&] { return layers[0].counted.reads() == 1; }));
    // The reader waits in the first layer, so the thread that acquires reads, and the other layers make room.
    acquire(engine, urgent.tensor);
    layers[0].counted.go_on();
    for (std::size_t i = 1; i < layers.size(); ++i) CHECK(layers[i].counted.reads() == 0);
    CHECK(engine->stats().peak_device_bytes <= 1000);
    // Cancelled prefetches can be repeated.
    for (const Bytes& layer : layers) CHECK_OK(acquire(engine, layer.tensor));
}

TEST_CASE("evict drops resident tensors that are not leased") {
    const auto fake = std::make_shared<FakeDevice>();
    const auto engine = engine_on(fake, 100);
    const Bytes a("a", 10);
    const Bytes b("b", 20);
    const Bytes never("never", 20);
    const auto held = acquire(engine, a.tensor);
    acquire(engine, b.tensor);
    const std::vector<LazyTensor> all = {a.tensor, b.tensor, b.tensor.renamed("tied"), never.tensor};
    engine->evict(all);
    CHECK(engine->stats().resident_bytes == 10);
    CHECK(engine->stats().evictions == 1);
    CHECK(fake->allocated == 10);
    acquire(engine, b.tensor);
    CHECK(b.counted.bytes() == 40);
}

TEST_CASE("a tensor that is not kept is evicted when its last lease ends") {
    const auto fake = std::make_shared<FakeDevice>();
    const auto engine = engine_on(fake, 100);
    const Bytes whole("whole", 100);
    for (int pass = 0; pass < 3; ++pass) {
        const auto part = whole.tensor.slice({{.start = 10, .stop = 20}});
        auto first = acquire(engine, part, Keep::no);
        const auto second = acquire(engine, part.renamed("again"), Keep::no);
        CHECK(first->tensors()[0].memory == second->tensors()[0].memory);
        first.reset();
        CHECK(fake->allocated == 10);
        CHECK(whole.counted.bytes() == 10 * static_cast<std::uint64_t>(pass + 1));
    }
    CHECK(fake->allocated == 0);
    CHECK(engine->stats().evictions == 0);
    CHECK_OK(acquire(engine, whole.tensor));
}

TEST_CASE("an engine can stop during uploads, and leaves nothing on the device") {
    for (const bool staged : {false, true}) {
        CAPTURE(staged);
        const auto fake = std::make_shared<FakeDevice>();
        fake->copy_microseconds = 200;
        for (int delay = 0; delay < 6; ++delay) {
            auto engine = engine_on(staged ? fake : Device::open("host"), 200_MiB, 3);
            std::vector<Bytes> tensors;
            std::vector<LazyTensor> all;
            for (int i = 0; i < 6; ++i) {
                tensors.emplace_back("t" + std::to_string(i), i % 2 == 0 ? 1000 : 20_MiB);
                all.push_back(tensors.back().tensor);
            }
            engine->prefetch(all);
            std::this_thread::sleep_for(std::chrono::milliseconds(delay * delay));
            engine.reset();
        }
        CHECK(soon([&] { return fake->allocated == 0; }));
        CHECK_FALSE(fake->staging_was_touched);
    }
}

TEST_CASE("a lease outlives the engine") {
    const auto fake = std::make_shared<FakeDevice>();
    auto engine = engine_on(fake, 100);
    const Bytes a("a", 10);
    const Bytes b("b", 10);
    auto held = acquire(engine, a.tensor);
    acquire(engine, b.tensor);
    engine->stop();
    engine.reset();
    CHECK(fake->allocated == 10);
    CHECK(read_back(*fake, held->tensors()[0]) == value_of(a.tensor));
    held.reset();
    CHECK(fake->allocated == 0);
}

TEST_CASE("without a budget, an engine takes nine tenths of the free memory") {
    const auto fake = std::make_shared<FakeDevice>();
    const auto engine = engine_on(fake, 0);
    const Bytes fits("fits", 900'000);
    const Bytes too_large("too_large", 900'001);
    CHECK_OK(acquire(engine, fits.tensor));
    CHECK_FAULT(acquire(engine, too_large.tensor), Errc::budget_exceeded);
}

TEST_CASE("too little staging memory is refused") {
    CHECK_FAULT(UploadEngine(Device::open("host"), UploadOptions{.staging_bytes = 4095}), Errc::invalid_argument);
}
