// Tests addresses that stay while the memory comes and goes: the functions of the driver for virtual memory, as the
// stub watches them, and reserved memory of a CUDA device.
#include "check_error.hpp"
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/uploader.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cuda_sleep_test {

using namespace safemap::literals;
using safemap::Device;
using safemap::DeviceMemory;
using safemap::Errc;
using safemap::NativeStream;
using safemap::drivers::CudaApi;
using safemap::drivers::CuMemoryAccess;
using safemap::drivers::CuMemoryHandle;
using safemap::drivers::CuMemoryProperties;
using safemap::drivers::CuPointer;
using safemap::drivers::CuResult;

namespace {

constexpr std::uint64_t granule = 2_MiB;
// Cache tests on the stub have smaller ones, so that less is written.
constexpr std::uint64_t small_granule = 64_KiB;
constexpr std::uint64_t budget = 40 * granule;  // all bundles fit, on a real GPU, too

/// Bundles of one tensor each, of which some share a block, and a cache that keeps their addresses.
struct Model {
    explicit Model(std::uint64_t bytes = budget)
        : cache(device, {.device_budget = bytes, .staging_bytes = 1_MiB, .readers = 2, .keep_addresses = true}) {
        for (const std::uint64_t size : {2'700'000U, 5'000U, 400'000U, 90'000U, 2'700'000U, 300U})
            tensors.push_back(std::make_unique<Bytes>("t" + std::to_string(tensors.size()), size));
        for (const auto& one : tensors) bundles.push_back(cache.bundle(one->tensor));
    }
    std::vector<const void*> addresses() const {
        std::vector<const void*> all;
        for (std::size_t i = 0; i < bundles.size(); ++i) {
            const Held held = cache.acquire(bundles[i]);
            CHECK(read_back(*device, held[0]) == value_of(tensors[i]->tensor));
            all.push_back(held[0].address());
        }
        return all;
    }

    std::shared_ptr<Device> device = Device::open("cuda");
    std::vector<std::unique_ptr<Bytes>> tensors;
    CacheFixture cache;
    std::vector<BundlePtr> bundles;
};

/// Reads bundles with kernels of a stream, while sleeping and waking now and then. Returns the number of wrong values
/// and of addresses that changed.
int use(StubCuda& stub, const Model& model, std::vector<std::atomic<const void*>>& seen, unsigned seed, int steps) {
    std::mt19937 random(seed);
    void* const stream = stub.make_stream();
    std::vector<std::unique_ptr<std::uint64_t>> sums;
    std::vector<std::uint64_t> expected;
    int wrong = 0;
    for (int step = 0; step < steps; ++step) {
        const std::size_t i = random() % model.bundles.size();
        switch (random() % 12) {
            case 0: static_cast<void>(model.cache.sleep()); break;
            case 1: model.cache.wake(); break;
            case 2: model.cache.prefetch(model.bundles[i]); break;
            case 3: stub.synchronize(stream); break;
            default: {
                const Held held = model.cache.acquire(model.bundles[i], NativeStream::cuda(stream));
                const void* const now = held[0].address();
                const void* before = nullptr;
                if (!seen[i].compare_exchange_strong(before, now) && before != now) ++wrong;
                sums.push_back(std::make_unique<std::uint64_t>(0));
                if (!stub.kernel_read(stream, now, held[0].nbytes(), *sums.back())) ++wrong;
                expected.push_back(stub.checksum(value_of(model.tensors[i]->tensor)));
            }
        }
    }
    stub.synchronize(stream);
    for (std::size_t i = 0; i < sums.size(); ++i) wrong += *sums[i] != expected[i] ? 1 : 0;
    return wrong;
}

/// A device whose stub has mapped memory of one granule.
struct Mapped {
    Mapped() {
        CHECK(api.cuMemAddressReserve(&address, granule, 0, 0, 0) == CuResult::success);
        const CuMemoryProperties properties;
        CHECK(api.cuMemCreate(&memory, granule, &properties, 0) == CuResult::success);
        CHECK(api.cuMemMap(address, granule, 0, memory, 0) == CuResult::success);
        const CuMemoryAccess access;
        CHECK(api.cuMemSetAccess(address, granule, &access, 1) == CuResult::success);
    }
    void end() {
        api.cuMemUnmap(address, granule);
        api.cuMemRelease(memory);
        api.cuMemAddressFree(address, granule);
    }

    StubCuda stub;
    const CudaApi& api = safemap::drivers::cuda_driver().api;
    std::shared_ptr<Device> device = Device::open("cuda");
    CuPointer address = 0;
    CuMemoryHandle memory = 0;
};

}  // namespace

TEST_CASE("the stub counts memory until it has neither a handle nor a mapping") {
    Mapped mapped;
    CHECK(mapped.stub.get("live_memory") == granule);
    mapped.api.cuMemRelease(mapped.memory);
    CHECK(mapped.stub.get("live_memory") == granule);
    mapped.api.cuMemUnmap(mapped.address, granule);
    CHECK(mapped.stub.get("live_memory") == 0);
    mapped.api.cuMemAddressFree(mapped.address, granule);
    mapped.device.reset();
    CHECK(mapped.stub.take_findings() == "");
    CHECK(mapped.stub.live() == 0);
}

TEST_CASE("the stub finds mapped memory that is left, or used in the wrong way") {
    Mapped mapped;
    if (needs_the_stub(mapped.stub, "the misuse would be real")) return;
    StubCuda& stub = mapped.stub;
    const CudaApi& api = mapped.api;
    void* const stream = stub.make_stream();
    auto* const at = reinterpret_cast<void*>(mapped.address);
    std::uint64_t sum = 0;
    CHECK(stub.kernel_read(stream, at, 100, sum));
    CHECK(api.cuMemAddressFree(mapped.address, granule) == CuResult::invalid_value);
    CHECK(stub.take_findings() == "addresses were freed while memory was mapped there");
    CHECK(api.cuMemMap(mapped.address, granule, 0, mapped.memory, 0) == CuResult::invalid_value);
    CHECK(stub.take_findings() == "memory was mapped where other memory is");
    CHECK(api.cuMemUnmap(mapped.address, granule) == CuResult::success);
    CHECK(stub.take_findings().starts_with("memory was unmapped while stream "));
    stub.synchronize(stream);
    CHECK_FALSE(stub.kernel_read(stream, at, 100, sum));
    CHECK(stub.take_findings() == "a kernel uses addresses without memory");
    CHECK(api.cuMemUnmap(mapped.address, granule) == CuResult::invalid_value);
    CHECK(stub.take_findings() == "memory was unmapped twice");
    CHECK(api.cuMemMap(mapped.address, granule, 0, mapped.memory, 0) == CuResult::success);
    stub.kernel_read(stream, at, 100, sum);
    CHECK(stub.take_findings() == "a kernel uses memory without access");
    stub.synchronize(stream);
    CHECK(stub.live() > 0);
    mapped.end();
    CHECK(api.cuMemRelease(mapped.memory) == CuResult::invalid_value);
    CHECK(stub.take_findings() == "memory was released twice, or never created");
    CHECK(api.cuMemUnmap(mapped.address, granule) == CuResult::invalid_value);
    CHECK(stub.take_findings() == "cuMemUnmap of addresses that are not reserved");
}

TEST_CASE("reserved memory of a CUDA device comes and goes at one address") {
    StubCuda stub;
    {
        CudaGround ground(8_KiB);
        const std::uint64_t before = stub.get("live_memory");
        const auto memory = ground.device->reserve(8_KiB);
        CHECK(memory->size() == ground.device->reserve(1)->size());
        CHECK(stub.get("live_memory") == before);
        void* const address = memory->handle();
        for (int i = 0; i < 3; ++i) {
            memory->commit();
            memory->commit();
            CHECK(stub.get("live_memory") == before + memory->size());
            CHECK(memory->handle() == address);
            ground.demand.copy(*memory, 0, *ground.staging, {0, 8_KiB});
            ground.demand.record()->wait();
            std::vector<std::byte> bytes(8_KiB);
            ground.device->copy_to_host(bytes, *memory, 0);
            CHECK(std::equal(bytes.begin(), bytes.end(), ground.staging->bytes().begin()));
            memory->decommit();
            memory->decommit();
            CHECK(stub.get("live_memory") == before);
        }
        memory->commit();  // the destructor gives back what is there
        const auto none = ground.device->reserve(0);
        none->commit();
        CHECK(none->handle() == nullptr);
        CHECK_FAULT(ground.memory->decommit(), Errc::invalid_argument);
        CHECK_FAULT(ground.memory->commit(), Errc::invalid_argument);
    }
    CHECK(stub.take_findings() == "");
    CHECK(stub.live() == 0);
}

TEST_CASE("each call of reserved memory that fails is an error with its name, and leaves nothing behind") {
    for (const CuResult failure : {CuResult::out_of_memory, CuResult::not_supported, CuResult::unknown}) {
        for (const char* const call : {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate",
                                       "cuMemMap", "cuMemSetAccess", "cuMemRelease", "cuMemUnmap"}) {
            CAPTURE(call);
            StubCuda stub;
            auto device = Device::open("cuda");
            stub.fail_nth(call, 1, failure);
            const auto error = error_of([&] {
                const auto memory = device->reserve(1);
                memory->commit();
                memory->decommit();
            });
            REQUIRE(error.has_value());
            const std::string name = call;
            const bool is_allocation = name == "cuMemAddressReserve" || name == "cuMemCreate" || name == "cuMemMap" ||
                                       name == "cuMemSetAccess";
            const bool is_full = failure == CuResult::out_of_memory && is_allocation;
            const bool is_refused = failure == CuResult::not_supported;
            CHECK(error->code() == (is_full      ? Errc::out_of_memory
                                    : is_refused ? Errc::invalid_argument
                                                 : Errc::device_failed));
            if (!is_full) CHECK(error->message().find(name + ": CUDA_ERROR_") != std::string::npos);
            // Memory of a device that failed stays, because the device may still use it.
            if (!is_full && !is_refused) continue;
            device.reset();
            CHECK(stub.live() == (is_refused && name == "cuMemRelease" ? 2 : 0));
            CHECK(stub.take_findings() == "");
        }
    }
}

TEST_CASE("a device without virtual memory cannot keep addresses, and says why") {
    StubCuda stub;
    stub.set("virtual_memory", 0);
    const auto device = Device::open("cuda");
    check_error(error_of([&] { return device->reserve(1); }), {Errc::invalid_argument}, {},
                {.message = "the device 'cuda:0' cannot keep addresses: its driver has no virtual memory management "
                            "(cuMemMap)"});
}

TEST_CASE("an uploader that keeps addresses refuses a device that cannot, by name") {
    StubCuda stub;
    stub.set("virtual_memory", 0);
    const auto device = Device::open("cuda");
    check_error(error_of([&] { safemap::Uploader(device, no_tensors(), {.keep_addresses = true}); }),
                {Errc::invalid_argument}, {},
                {.message = "the device 'cuda:0' cannot keep addresses: its driver has no virtual memory management "
                            "(cuMemMap)"});
    CHECK_OK(safemap::Uploader(device, no_tensors(), {}));
}

TEST_CASE("while an uploader sleeps the GPU has no memory of it, and after that each bundle is where it was") {
    StubCuda stub;
    if (!stub.is_real()) stub.set("granularity", small_granule);
    {
        const Model model;
        const std::vector<const void*> before = model.addresses();
        const std::uint64_t most = stub.get("live_memory");
        CHECK(most > 0);
        CHECK(most % (stub.is_real() ? granule : small_granule) == 0);
        for (int i = 0; i < 3; ++i) {
            CHECK(model.cache.sleep() == 0);
            CHECK(stub.get("live_memory") == 0);
            model.cache.wake();
            CHECK(model.addresses() == before);
            CHECK(stub.get("live_memory") <= most);
        }
        CHECK(stub.get("peak_memory") <= budget);
        CHECK(model.cache.sleep() == 0);  // addresses without memory are given back, too
    }
    CHECK(stub.take_findings() == "");
    CHECK(stub.live() == 0);
}

TEST_CASE("physical memory never exceeds a budget that bundles and their rounding do not fit into") {
    StubCuda stub;
    if (!stub.is_real()) stub.set("granularity", small_granule);
    constexpr std::uint64_t narrow = 4 * granule + 100;
    {
        const Model model(narrow);
        for (int i = 0; i < 3; ++i) {
            static_cast<void>(model.addresses());
            static_cast<void>(model.cache.sleep());
            CHECK(stub.get("live_memory") == 0);
            model.cache.wake();
        }
        CHECK(stub.get("peak_memory") <= narrow);
    }
    CHECK(stub.take_findings() == "");
    CHECK(stub.live() == 0);
}

TEST_CASE("kernels of several streams find each bundle where it was, under random sleeps") {
    const unsigned first = soak::seed(0) % 1'000'000;
    for (unsigned i = 0; i < static_cast<unsigned>(soak::rounds(8)); ++i) {
        CAPTURE(first + i);
        StubCuda stub;
        if (!stub.is_real()) stub.set("granularity", small_granule);
        stub.set("lag", i % 2 * 20);
        {
            const Model model;
            std::vector<std::atomic<const void*>> seen(model.bundles.size());
            std::atomic<int> wrong = 0;
            std::vector<std::thread> threads;
            for (unsigned t = 0; t < 3; ++t)
                threads.emplace_back([&, t] { wrong += use(stub, model, seen, (first + i) * 10 + t, 60); });
            for (std::thread& thread : threads) thread.join();
            CHECK(wrong == 0);
            CHECK(model.cache.sleep() == 0);
            CHECK(stub.get("live_memory") == 0);
            CHECK(stub.get("peak_memory") <= budget);
        }
        CHECK(stub.take_findings() == "");
        CHECK(stub.live() == 0);
    }
}

TEST_CASE("a cache that sleeps survives each call of the driver that fails, and says which") {
    for (const CuResult failure : {CuResult::unknown, CuResult::out_of_memory}) {
        for (std::uint64_t n = soak::stride(7);; n += soak::stride(7)) {
            StubCuda stub;
            if (!stub.is_real()) stub.set("granularity", small_granule);
            CAPTURE(n);
            std::uint64_t opened = 0;
            stub.fail_nth("", n, failure);
            const auto error = error_of([&] {
                const Model model;
                opened = stub.get("calls");
                for (int i = 0; i < 2; ++i) {
                    for (const BundlePtr& bundle : model.bundles) static_cast<void>(model.cache.acquire(bundle));
                    static_cast<void>(model.cache.sleep());
                    model.cache.wake();
                }
            });
            const std::vector<std::string> names = stub.calls();
            if (names.size() < n) break;
            const std::string& name = names[n - 1];
            CAPTURE(name);
            if (error && n > opened && opened > 0 && error->code() == Errc::device_failed)
                CHECK(error->message().find(name.substr(0, name.find("_v2"))) != std::string::npos);
            // An allocation that fails once is tried again, after memory that is kept was freed.
            const bool is_full =
                failure == CuResult::out_of_memory && (name == "cuMemCreate" || name == "cuMemMap" ||
                                                       name == "cuMemSetAccess" || name == "cuMemAddressReserve");
            if (is_full && opened > 0) {
                CHECK_FALSE(error.has_value());
                CHECK(stub.live() == 0);
                CHECK(stub.take_findings() == "");
            }
            if (name == "cuCtxPopCurrent_v2" || name == "cuThreadExchangeStreamCaptureMode") continue;
            CHECK(stub.take_findings() == "");
        }
    }
}

}  // namespace cuda_sleep_test
