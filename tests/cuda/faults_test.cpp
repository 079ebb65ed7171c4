// Tests what a CUDA device does when the driver fails: one error for each failure, no memory freed that the device may
// still use, and nothing left over where it is safe to free it.
#include "check_error.hpp"
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "device/cache_fixture.hpp"
#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace cuda_faults_test {

using namespace std::chrono_literals;
using namespace safemap::literals;
using safemap::Bundle;
using safemap::Device;
using safemap::DeviceMemory;
using safemap::Errc;
using safemap::FillTarget;
using safemap::Lease;
using safemap::NativeStream;
using safemap::Uploader;
using safemap::drivers::CuResult;

namespace {

/// Numbers of calls of the driver.
struct Calls {
    std::uint64_t until_open = 0;
    std::uint64_t before_destructors = 0;
};

/// Uses every function of a device.
void use_everything(StubCuda& stub, Calls& calls) {
    const auto device = Device::open("cuda");
    calls.until_open = stub.get("calls");
    CudaGround ground(8_KiB, device);
    void* const stream = stub.make_stream();
    ground.copy_all(ground.bulk);
    ground.bulk.copy_rows(*ground.memory, *ground.staging,
                          {.to = 0, .to_pitch = 200, .from = 0, .from_pitch = 200, .row_bytes = 100, .rows = 5});
    const auto event = ground.bulk.record();
    ground.demand.wait_for(*event);
    ground.device->make_wait(NativeStream::cuda(stream), *event);
    if (stub.is_real()) stub.synchronize(stream);  // so that the event is done, and the number of queries is known
    const bool in_time = event->wait_until(std::chrono::steady_clock::now() + 60s);
    CHECK(in_time);
    const auto used = ground.device->record(NativeStream::cuda(stream));
    used->wait();
    const bool capturing = ground.device->is_capturing(NativeStream::cuda(stream));
    CHECK_FALSE(capturing);
    ground.demand.record()->wait();
    ground.bulk.drain();
    ground.device->allocate(4_KiB).reset();
    const bool arrived = ground.arrived();
    CHECK(arrived);
    const std::uint64_t free = ground.device->free_memory();
    CHECK(free > 0);
    calls.before_destructors = stub.get("calls");
}

bool is_one_of(const std::string& name, const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

/// Lets call `n` of use_everything() fail. Returns false if there are fewer calls.
bool fail_call(std::uint64_t n, CuResult failure, std::uint64_t pools, const Calls& whole) {
    StubCuda stub;
    stub.set("pools", pools);
    stub.fail_nth("", n, failure);
    Calls calls;
    const auto error = error_of([&] { use_everything(stub, calls); });
    const std::vector<std::string> names = stub.calls();
    if (names.size() < n) return false;
    const std::string name = names[n - 1];
    CAPTURE(name);
    CAPTURE(n);
    const std::string findings = stub.take_findings();
    // A thread keeps what the driver does not take back.
    if (!is_one_of(name, {"cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode"})) CHECK(findings == "");
    // The last two calls of use_everything() leave the context. Later ones are of destructors.
    const bool unseen = n + 2 > whole.before_destructors;
    CHECK((error.has_value() || unseen));
    if (error) {
        const bool before_opening = is_one_of(name, {"cuInit", "cuDeviceGetCount"});
        CHECK(error->code() == (before_opening ? Errc::no_such_device : Errc::device_failed));
        CHECK(error->message().find("CUDA_ERROR_") != std::string::npos);
    }
    // While a device opens, nothing is under way, and all of it is given back.
    if (n <= whole.until_open) CHECK(stub.get(failure == CuResult::unknown ? "live" : "retained") == 0);
    if (failure == CuResult::unknown && findings.empty()) {
        const std::uint64_t left = stub.live();
        Calls again;
        CHECK_OK(use_everything(stub, again));
        CHECK(stub.live() == left);
        CHECK(stub.take_findings() == "");
    }
    return true;
}

}  // namespace

TEST_CASE("each call of the driver that fails is one error, and no memory is freed too early") {
    for (const std::uint64_t pools : {0U, 1U}) {
        Calls calls;
        {
            StubCuda stub;
            stub.set("pools", pools);
            use_everything(stub, calls);
            CHECK(stub.live() == 0);
            CHECK(stub.take_findings() == "");
        }
        for (const CuResult failure : {CuResult::unknown, CuResult::launch_failed}) {
            std::uint64_t failed = 0;
            while (fail_call(failed + 1, failure, pools, calls)) ++failed;
            CHECK(failed > calls.before_destructors);
        }
    }
}

TEST_CASE("a call that the driver refuses for its arguments fails alone, and the device goes on") {
    for (const CuResult refusal : {CuResult::invalid_value, CuResult::invalid_handle, CuResult::not_supported}) {
        StubCuda stub;
        CudaGround ground(8_KiB);
        stub.fail_nth("cuMemcpyHtoDAsync_v2", 1, refusal);
        const auto error = error_of([&] { ground.copy_all(ground.bulk); });
        REQUIRE(error.has_value());
        CHECK(error->code() == Errc::invalid_argument);
        CHECK(error->message().find("refused a call: cuMemcpyHtoDAsync: ") != std::string::npos);
        ground.copy_all(ground.bulk);
        ground.bulk.record()->wait();
        CHECK(ground.arrived());
        CHECK(stub.take_findings() == "");
    }
}

TEST_CASE("a target of a wrong size, or of the host, fails its fill, and leases go on") {
    StubCuda stub;
    CudaGround ground(8_KiB);
    const Bytes weight("w", 8_KiB);
    Uploader uploader(ground.device, no_tensors(), {.device_budget = 1_MiB});
    const Bundle bundle = uploader.bundle(std::vector{weight.tensor});
    const auto fill_fails = [&](void* address) {
        const std::vector<FillTarget> target = {{weight.tensor, address, 8_KiB}};
        const auto error = error_of([&] { return uploader.fill(target); });
        CHECK((error && error->code() == Errc::invalid_argument));
        const Lease lease = uploader.acquire(bundle);
        CHECK(read_back(*ground.device, lease.tensors()[0]) == value_of(weight.tensor));
        uploader.evict(bundle);
    };
    const auto small = ground.device->allocate(4_KiB);
    fill_fails(small->handle());
    std::vector<std::byte> host(8_KiB);
    fill_fails(host.data());
    static_cast<void>(stub.take_findings());  // the stub finds fault with the caller, and so it should
}

TEST_CASE("an allocation that fails in any call leaves nothing behind") {
    for (const std::uint64_t pools : {0U, 1U}) {
        for (const char* const call : {"cuMemAlloc_v2", "cuMemAllocFromPoolAsync"}) {
            StubCuda stub;
            stub.set("pools", pools);
            auto device = Device::open("cuda");
            const bool is_used = (pools == 0) == (std::string(call) == "cuMemAlloc_v2");
            stub.fail_nth(call, 1, CuResult::out_of_memory);
            stub.fail_nth(call, 2, CuResult::out_of_memory);
            const auto error = error_of([&] { return device->allocate(1_KiB); });
            if (is_used) CHECK((error && error->code() == Errc::out_of_memory));
            else CHECK_FALSE(error);
            CHECK(stub.get("live_allocations") == 0);
            device.reset();
            CHECK(stub.live() == 0);
        }
    }
}

TEST_CASE("a device without room for its context is out_of_memory") {
    StubCuda stub;
    stub.fail_nth("cuDevicePrimaryCtxRetain", 1, CuResult::out_of_memory);
    CHECK_FAULT(Device::open("cuda"), Errc::out_of_memory);
    CHECK(stub.live() == 0);
}

TEST_CASE("after a failure every call fails with its name, and memory of the host stays") {
    StubCuda stub;
    auto ground = std::make_unique<CudaGround>(8_KiB);
    ground->copy_all(ground->bulk);
    const auto before = ground->bulk.record();
    before->wait();
    stub.hold(stub.stream(1));
    ground->copy_all(ground->bulk);
    auto event = ground->bulk.record();
    stub.break_device(CuResult::illegal_address);
    const auto fails = [](auto&& use) {
        check_error(error_of(use), {Errc::device_failed}, {},
                    {.message = "the device 'cuda:0' failed: cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal "
                                "memory access was encountered)"});
    };
    std::vector<std::byte> host(10);
    fails([&] { return event->done(); });
    fails([&] { event->wait(); });
    fails([&] { return before->done(); });
    fails([&] { return event->wait_until(std::chrono::steady_clock::now() + 1s); });
    fails([&] { return ground->device->allocate(1); });
    fails([&] { return ground->device->allocate(0); });
    fails([&] { return ground->device->allocate_staging(1); });
    fails([&] { return ground->device->free_memory(); });
    fails([&] { ground->device->copy_to_host(host, *ground->memory, 0); });
    fails([&] { ground->device->make_wait(NativeStream::cuda(nullptr), *event); });
    fails([&] { return ground->device->record(NativeStream::cuda(nullptr)); });
    fails([&] { return ground->device->is_capturing(NativeStream::cuda(nullptr)); });
    fails([&] { ground->copy_all(ground->demand); });
    fails([&] { ground->demand.copy_rows(*ground->memory, *ground->staging, {.rows = 1}); });
    fails([&] { return ground->demand.record(); });
    fails([&] { ground->demand.wait_for(*event); });
    ground->bulk.drain();

    const std::span<std::byte> bytes = ground->staging->bytes();
    const std::uint64_t calls = stub.get("calls");
    ground.reset();
    event.reset();
    CHECK(stub.get("calls") == calls);
    CHECK(stub.get("live_allocations") == 1);
    CHECK(stub.get("live_registrations") == 1);
    std::vector<std::byte> expected(bytes.size());
    fill(expected, bytes.size());
    CHECK(std::equal(bytes.begin(), bytes.end(), expected.begin()));  // still mapped
    CHECK(stub.take_findings() == "");
}

TEST_CASE("draining a queue waits for its copies after a failure, too") {
    StubCuda stub;
    if (needs_the_stub(stub, "the copy is late because nobody asks for it, and the host reads device memory")) return;
    CudaGround ground(1_KiB);
    ground.copy_all(ground.bulk);
    stub.fail_nth("cuEventRecord", 1, CuResult::unknown);
    CHECK_FAULT(ground.bulk.record(), Errc::device_failed);
    const auto* const on_device = static_cast<const std::byte*>(ground.memory->handle());  // the stub's memory
    CHECK_FALSE(std::equal(on_device, on_device + 1_KiB, ground.staging->bytes().begin()));
    ground.bulk.drain();
    CHECK(std::equal(on_device, on_device + 1_KiB, ground.staging->bytes().begin()));
}

TEST_CASE("a wait without a deadline ends when the device fails") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    stub.hold(stub.stream(0));
    ground.copy_all(ground.demand);
    const auto event = ground.demand.record();
    std::thread breaker([&] {
        std::this_thread::sleep_for(5ms);
        stub.break_device(CuResult::launch_failed);
    });
    CHECK_FAULT(event->wait(), Errc::device_failed);
    breaker.join();
}

TEST_CASE("a device that is opened again after a failure works if the driver does") {
    StubCuda stub;
    {
        CudaGround ground(1_KiB);
        stub.fail_nth("cuMemcpyHtoDAsync_v2", 1, CuResult::unknown);
        CHECK_FAULT(ground.copy_all(ground.bulk), Errc::device_failed);
        CHECK_FAULT(ground.copy_all(ground.bulk), Errc::device_failed);
    }
    CudaGround ground(1_KiB);
    ground.copy_all(ground.bulk);
    ground.bulk.record()->wait();
    CHECK(ground.arrived());
}

}  // namespace cuda_faults_test
