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
using safemap::drivers::CudaApi;
using safemap::drivers::CuMemoryAccess;
using safemap::drivers::CuMemoryHandle;
using safemap::drivers::CuMemoryProperties;
using safemap::drivers::CuPointer;
using safemap::drivers::CuResult;

namespace {

constexpr std::uint64_t granule = 2_MiB;

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

}  // namespace cuda_sleep_test
