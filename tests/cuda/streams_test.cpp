// Tests how a CUDA device meets the program that it runs in: streams, captures, contexts, threads and forks.
#include "child_process.hpp"
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "doctest_safemap.hpp"
#include "drivers/cuda_api.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace cuda_streams_test {

using namespace std::chrono_literals;
using namespace safemap::literals;
using safemap::Device;
using safemap::Errc;
using safemap::NativeStream;
using safemap::drivers::cuda_driver;
using safemap::drivers::CuResult;

TEST_CASE("a kernel that waits for an event sees the bytes, without a wait on the host") {
    StubCuda stub;
    CudaGround ground(10_KiB);
    void* const stream = stub.make_stream();
    std::uint64_t sum = 0;
    ground.copy_all(ground.bulk);
    ground.device->make_wait(NativeStream::cuda(stream), *ground.bulk.record());
    CHECK(stub.kernel_read(stream, ground.memory->handle(), 10_KiB, sum));
    CHECK(stub.get("cuEventSynchronize") + stub.get("cuEventQuery") == 0);
    stub.synchronize(stream);
    CHECK(sum == stub.checksum(ground.staging->bytes()));
    CHECK(stub.take_findings() == "");
}

TEST_CASE("a copy that waits for a caller's stream does not overtake its kernels") {
    StubCuda stub;
    CudaGround ground(10_KiB);
    void* const stream = stub.make_stream();
    ground.copy_all(ground.bulk);
    ground.bulk.record()->wait();
    const std::uint64_t first = stub.checksum(ground.staging->bytes());
    stub.hold(stream);
    std::uint64_t sum = 0;
    CHECK(stub.kernel_read(stream, ground.memory->handle(), 10_KiB, sum));
    const auto used = ground.device->record(NativeStream::cuda(stream));
    CHECK_FALSE(used->done());
    ground.bulk.wait_for(*used);
    fill(ground.staging->bytes(), 7);
    ground.copy_all(ground.bulk);
    const auto second = ground.bulk.record();
    CHECK_FALSE(second->done());
    stub.release(stream);
    second->wait();
    CHECK(used->done());
    CHECK(sum == first);
    CHECK(ground.arrived());
    CHECK(stub.take_findings() == "");
}

TEST_CASE("the default stream is a stream of the caller, too") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    ground.copy_all(ground.bulk);
    ground.device->make_wait(NativeStream::cuda(nullptr), *ground.bulk.record());
    ground.device->record(NativeStream::cuda(nullptr))->wait();
    CHECK_FALSE(ground.device->is_capturing(NativeStream::cuda(nullptr)));
    CHECK(ground.arrived());
    CHECK(stub.take_findings() == "");
}

TEST_CASE("streams of other kinds are refused") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    const auto event = ground.bulk.record();
    for (const NativeStream stream : {NativeStream{}, NativeStream::opencl(stub.make_stream())}) {
        CHECK_FAULT(ground.device->make_wait(stream, *event), Errc::invalid_argument);
        CHECK_FAULT(ground.device->record(stream), Errc::invalid_argument);
        CHECK_FAULT(ground.device->is_capturing(stream), Errc::invalid_argument);
    }
    event->wait();
}

TEST_CASE("a stream of another device is refused, and the device goes on") {
    StubCuda stub;
    if (needs_the_stub(stub, "it has two devices")) return;
    stub.set("devices", 2);
    CudaGround ground(1_KiB);
    CHECK_FAULT(ground.device->record(NativeStream::cuda(stub.make_stream(1))), Errc::invalid_argument);
    ground.copy_all(ground.bulk);
    ground.bulk.record()->wait();
    CHECK(ground.arrived());
}

TEST_CASE("a captured stream is recognised, and waits of it are refused") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    void* const stream = stub.make_stream();
    CHECK_FALSE(ground.device->is_capturing(NativeStream::cuda(stream)));
    stub.begin_capture(stream);
    CHECK(ground.device->is_capturing(NativeStream::cuda(stream)));
    CHECK(ground.device->is_capturing(NativeStream::cuda(nullptr)));  // it would wait for the captured stream
    CHECK(stub.end_capture(stream));
    CHECK_FALSE(ground.device->is_capturing(NativeStream::cuda(stream)));

    stub.begin_capture(stream);
    const auto event = ground.bulk.record();
    CHECK_FAULT(ground.device->make_wait(NativeStream::cuda(stream), *event), Errc::invalid_argument);
    CHECK_FALSE(stub.end_capture(stream));
    CHECK(stub.take_findings() == "a captured stream waits for an event from outside");
    event->wait();  // the device did not fail
}

TEST_CASE("nothing that a device does ends a capture of another thread, or of the same one") {
    for (const std::uint64_t pools : {0U, 1U}) {
        StubCuda stub;
        stub.set("pools", pools);
        void* const stream = stub.make_stream();
        stub.begin_capture(stream);
        const auto use = [] {
            CudaGround ground(1_KiB);
            ground.copy_all(ground.bulk);
            ground.demand.wait_for(*ground.bulk.record());
            CHECK(ground.demand.record()->wait_until(std::chrono::steady_clock::now() + 10s));
            ground.bulk.record()->wait();
            ground.bulk.drain();
            CHECK(ground.device->free_memory() > 0);
            CHECK(ground.arrived());
        };
        use();
        std::thread(use).join();
        CHECK(stub.end_capture(stream));
        CHECK(stub.take_findings() == "");
        CHECK(stub.live() == 0);
    }
}

TEST_CASE("the current context and the capture mode of a caller stay") {
    StubCuda stub;
    const int other = other_device(stub) == std::string("cuda:1") ? 1 : 0;
    const auto& api = cuda_driver().api;
    safemap::drivers::CuContext context = nullptr;
    REQUIRE(api.cuInit(0) == CuResult::success);
    REQUIRE(api.cuDevicePrimaryCtxRetain(&context, other) == CuResult::success);
    REQUIRE(api.cuCtxPushCurrent_v2(context) == CuResult::success);
    auto mode = safemap::drivers::CuCaptureMode::thread_local_mode;
    api.cuThreadExchangeStreamCaptureMode(&mode);
    {
        CudaGround ground(1_KiB);
        CHECK(stub.get("contexts_here") == 1);
        ground.copy_all(ground.bulk);
        ground.bulk.record()->wait();
        CHECK(ground.arrived());
    }
    CHECK(stub.get("contexts_here") == 1);
    mode = safemap::drivers::CuCaptureMode::global;
    api.cuThreadExchangeStreamCaptureMode(&mode);
    CHECK(mode == safemap::drivers::CuCaptureMode::thread_local_mode);
    safemap::drivers::CuContext popped = nullptr;
    REQUIRE(api.cuCtxPopCurrent_v2(&popped) == CuResult::success);
    CHECK(popped == context);
    api.cuDevicePrimaryCtxRelease_v2(other);
    CHECK(stub.live() == 0);
    CHECK(stub.take_findings() == "");
}

TEST_CASE("a child process cannot use the device of its parent, and does not crash") {
    StubCuda stub;
    CudaGround ground(1_KiB);
    ground.copy_all(ground.bulk);
    const auto event = ground.bulk.record();
    const std::uint64_t calls = stub.get("calls");
    CHECK(true_in_child([&] {
        const auto lost = [](auto&& use) {
            const auto error = error_of(use);
            return error && error->code() == Errc::device_failed && error->message().ends_with("before a fork");
        };
        const bool all_lost = lost([&] { return ground.device->allocate(1_KiB); }) &&
                              lost([&] { return ground.device->allocate_staging(1_KiB); }) &&
                              lost([&] { ground.copy_all(ground.bulk); }) &&
                              lost([&] { return ground.bulk.record(); }) && lost([&] { return event->done(); }) &&
                              lost([&] { event->wait(); });
        ground.bulk.drain();
        ground.memory.reset();
        ground.staging.reset();
        ground.device.reset();
        return all_lost && stub.get("calls") == calls;
    }));
    event->wait();
    CHECK(ground.arrived());
}

// This process must not have used the driver, so the test is not among the others.
TEST_CASE("before first use, a process may fork, and its child has the device" * doctest::skip()) {
    const auto works = [] {
        StubCuda stub;
        CudaGround ground(1_KiB);
        ground.copy_all(ground.demand);
        ground.demand.record()->wait();
        return ground.arrived() && stub.take_findings().empty();
    };
    CHECK(true_in_child(works));
    CHECK(works());
}

TEST_CASE("threads share a device") {
    StubCuda stub;
    stub.set("lag", 2);
    {
        const auto device = Device::open("cuda");
        const auto use = [&](std::uint64_t seed) {
            auto& queue = device->queue(seed % 2 == 0 ? Device::Lane::demand : Device::Lane::bulk);
            for (std::uint64_t i = 0; i < 30; ++i) {
                const auto memory = device->allocate(4_KiB + seed);
                const auto staging = device->allocate_staging(4_KiB + seed);
                fill(staging->bytes(), seed * 100 + i);
                queue.copy(*memory, 0, *staging, {0, memory->size()});
                const auto event = queue.record();
                if (i % 2 == 0) event->wait();
                else CHECK(event->wait_until(std::chrono::steady_clock::now() + 60s));
                const auto bytes = read_back(*device, *memory);
                CHECK(std::equal(bytes.begin(), bytes.end(), staging->bytes().begin(), staging->bytes().end()));
            }
        };
        std::vector<std::thread> threads;
        for (std::uint64_t seed = 0; seed < 4; ++seed) threads.emplace_back(use, seed);
        for (std::thread& thread : threads) thread.join();
        CHECK(stub.get("copies") == 120);
    }
    CHECK(stub.live() == 0);
    CHECK(stub.take_findings() == "");
}

}  // namespace cuda_streams_test
