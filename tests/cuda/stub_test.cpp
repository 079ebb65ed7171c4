// Tests that the stub of the CUDA driver finds each fault that it promises to find, and nothing in the correct program
// beside it. Everything goes through the functions of the driver.
#include "cuda/fixture.hpp"
#include "cuda/stub_cuda.hpp"
#include "doctest_safemap.hpp"
#include "drivers/cuda_api.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace cuda_stub_test {

using safemap::drivers::CuCaptureMode;
using safemap::drivers::CuContext;
using safemap::drivers::CudaApi;
using safemap::drivers::CuEvent;
using safemap::drivers::CuPointer;
using safemap::drivers::CuResult;
using safemap::drivers::CuStream;

namespace {

constexpr std::size_t size = 1000;

/// A program that uses the driver: a current context, two streams, memory and a buffer. It ends without a trace.
struct Program {
    Program() {
        CHECK(api.cuInit(0) == CuResult::success);
        CHECK(api.cuDevicePrimaryCtxRetain(&context, 0) == CuResult::success);
        CHECK(api.cuCtxPushCurrent_v2(context) == CuResult::success);
        CHECK(api.cuStreamCreateWithPriority(&one, 1, 0) == CuResult::success);
        CHECK(api.cuStreamCreateWithPriority(&two, 1, 0) == CuResult::success);
        CHECK(api.cuMemAlloc_v2(&memory, size) == CuResult::success);
        CHECK(api.cuMemHostRegister_v2(buffer.data(), size, 1) == CuResult::success);
        fill(buffer, 1);
    }
    ~Program() {
        api.cuStreamSynchronize(one);
        api.cuStreamSynchronize(two);
        if (memory != 0) api.cuMemFree_v2(memory);
        if (registered) api.cuMemHostUnregister(buffer.data());
        api.cuStreamDestroy_v2(one);
        api.cuStreamDestroy_v2(two);
        CuContext popped = nullptr;
        if (is_current) api.cuCtxPopCurrent_v2(&popped);
        api.cuDevicePrimaryCtxRelease_v2(0);
    }
    CuResult copy(CuStream stream, std::size_t bytes = size) {
        return api.cuMemcpyHtoDAsync_v2(memory, buffer.data(), bytes, stream);
    }
    CuEvent record(CuStream stream) {
        CuEvent event = nullptr;
        CHECK(api.cuEventCreate(&event, 2) == CuResult::success);
        CHECK(api.cuEventRecord(event, stream) == CuResult::success);
        return event;
    }
    void read(CuStream stream) { CHECK(stub.kernel_read(stream, reinterpret_cast<void*>(memory), size, sum)); }

    StubCuda stub;
    const CudaApi& api = safemap::drivers::cuda_driver().api;
    CuContext context = nullptr;
    CuStream one = nullptr;
    CuStream two = nullptr;
    CuPointer memory = 0;
    std::vector<std::byte> buffer = std::vector<std::byte>(2 * size);
    bool registered = true;
    bool is_current = true;
    std::uint64_t sum = 0;
};

/// A real driver finds none of what the stub finds.
bool is_on_gpu() { return needs_the_stub(StubCuda(), "it is about the stub"); }

/// Runs a program to its end, and returns what the stub found.
template <class Run> std::string findings_of(Run&& run) {
    StubCuda stub;
    {
        Program program;
        run(program);
    }
    return stub.take_findings();
}

}  // namespace

TEST_CASE("the stub copies, and a program without a fault has no findings") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              program.copy(program.one);
              program.api.cuStreamSynchronize(program.one);
              CHECK(std::memcmp(reinterpret_cast<void*>(program.memory), program.buffer.data(), size) == 0);
          }) == "");
    CHECK(StubCuda().live() == 0);
}

TEST_CASE("the stub finds a staging buffer that is written while a copy needs it") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              program.copy(program.one);
              program.buffer[500] ^= std::byte{1};
          }) == "a staging buffer was written while a copy needed it");
    CHECK(findings_of([](Program& program) {
              program.copy(program.one);
              program.api.cuStreamSynchronize(program.one);
              program.buffer[500] ^= std::byte{1};
          }) == "");
    CHECK(findings_of([](Program& program) {
              program.copy(program.one, 500);
              program.buffer[500] ^= std::byte{1};  // beside the copy
          }) == "");
}

TEST_CASE("the stub finds device memory that is freed while a copy needs it") {
    if (is_on_gpu()) return;
    const auto free = [](Program& program) { program.api.cuMemFree_v2(std::exchange(program.memory, 0)); };
    CHECK(findings_of([&](Program& program) {
              program.copy(program.one);
              free(program);
          }) == "memory was freed while stream 0 writes it");
    CHECK(findings_of([&](Program& program) {
              program.copy(program.one);
              const CuEvent event = program.record(program.one);
              CHECK(program.api.cuEventQuery(event) == CuResult::success);
              free(program);
          }) == "");
}

TEST_CASE("the stub finds memory of a pool that is freed in a stream that does not wait for its users") {
    if (is_on_gpu()) return;
    const auto free = [](Program& program) {
        program.api.cuMemFreeAsync(std::exchange(program.memory, 0), program.two);
    };
    CHECK(findings_of([&](Program& program) {
              program.copy(program.one);
              free(program);
          }) == "memory was freed while stream 0 writes it");
    CHECK(findings_of([&](Program& program) {
              program.copy(program.one);
              program.api.cuStreamWaitEvent(program.two, program.record(program.one), 0);
              free(program);
          }) == "");
}

TEST_CASE("the stub finds host memory that is unregistered while a copy needs it") {
    if (is_on_gpu()) return;
    const auto unregister = [](Program& program) {
        program.registered = false;
        program.api.cuMemHostUnregister(program.buffer.data());
    };
    CHECK(findings_of([&](Program& program) {
              program.copy(program.one);
              unregister(program);
          }) == "host memory was unregistered while a copy needed it");
    CHECK(findings_of([&](Program& program) {
              program.copy(program.one);
              program.api.cuEventSynchronize(program.record(program.one));
              unregister(program);
          }) == "");
    CHECK(findings_of([&](Program& program) {
              unregister(program);
              unregister(program);
          }) == "host memory was unregistered that is not registered");
}

TEST_CASE("the stub finds uses of memory that was freed, and memory that is freed twice") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              program.api.cuMemFree_v2(program.memory);
              program.copy(program.one);
              program.memory = 0;
          }) == "cuMemcpyHtoDAsync uses memory that was freed");
    CHECK(findings_of([](Program& program) {
              program.api.cuMemFree_v2(program.memory);
              CHECK_FALSE(
                  program.stub.kernel_read(program.one, reinterpret_cast<void*>(program.memory), 1, program.sum));
              const auto* const bytes = reinterpret_cast<const std::byte*>(program.memory);
              CHECK(std::all_of(bytes, bytes + size, [](std::byte byte) { return byte == std::byte{0xEE}; }));
              program.memory = 0;
          }) == "a kernel uses memory that was freed");
    CHECK(findings_of([](Program& program) {
              program.api.cuMemFree_v2(program.memory);
              program.api.cuMemFree_v2(program.memory);
              program.memory = 0;
          }) == "memory was freed twice, or is not device memory");
}

TEST_CASE("the stub finds copies and kernels outside of memory") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              CHECK(program.copy(program.one, size + 1) == CuResult::invalid_value);
          }) == "cuMemcpyHtoDAsync reaches outside device memory");
    CHECK(findings_of([](Program& program) {
              std::vector<std::byte> host(size);
              program.api.cuMemcpyDtoHAsync_v2(host.data(), program.memory + 1, size, program.one);
          }) == "cuMemcpyDtoHAsync reaches outside device memory");
}

TEST_CASE("the stub finds bytes that are written around an allocation") {
    if (is_on_gpu()) return;
    const auto write_at = [](Program& program, std::ptrdiff_t place) {
        reinterpret_cast<std::byte*>(program.memory)[place] = std::byte{1};
    };
    for (const std::ptrdiff_t place : {std::ptrdiff_t{-1}, static_cast<std::ptrdiff_t>(size)})
        CHECK(findings_of([&](Program& program) { write_at(program, place); }) ==
              "something wrote outside of an allocation");
    CHECK(findings_of([&](Program& program) { write_at(program, 0); }) == "");
    CHECK(findings_of([&](Program& program) { write_at(program, size - 1); }) == "");
}

TEST_CASE("the stub finds a copy from memory that is registered in part") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              CHECK(program.api.cuMemcpyHtoDAsync_v2(program.memory, program.buffer.data() + 1, size, program.one) ==
                    CuResult::invalid_value);
          }) == "cuMemcpyHtoDAsync from memory that is registered only in part, or by several calls");
    CHECK(findings_of([](Program& program) {
              CHECK(program.api.cuMemcpyHtoDAsync_v2(program.memory, program.buffer.data() + size, size, program.one) ==
                    CuResult::success);  // not registered at all
          }) == "");
}

TEST_CASE("the stub finds calls without a current context, and contexts that stay") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              CuContext popped = nullptr;
              program.api.cuCtxPopCurrent_v2(&popped);
              CHECK(program.copy(program.one) == CuResult::invalid_context);
              program.api.cuCtxPushCurrent_v2(program.context);
              program.is_current = true;
          }).starts_with("cuMemcpyHtoDAsync_v2 was called without a current context"));
    const auto on_a_thread = [](Program& program, bool pops) {
        std::thread([&] {
            program.api.cuCtxPushCurrent_v2(program.context);
            CuContext popped = nullptr;
            if (pops) program.api.cuCtxPopCurrent_v2(&popped);
        }).join();
    };
    StubCuda stub;
    Program program;
    on_a_thread(program, true);
    CuContext popped = nullptr;
    program.api.cuCtxPopCurrent_v2(&popped);
    CHECK(stub.take_findings() == "");
    on_a_thread(program, false);
    CHECK(stub.take_findings() == "a context was left behind on a thread that ended");
    program.api.cuCtxPushCurrent_v2(program.context);
    CHECK(stub.take_findings() == "a context was left behind on this thread");
    program.api.cuCtxPushCurrent_v2(program.context);
}

TEST_CASE("the stub finds a capture mode that is not put back") {
    if (is_on_gpu()) return;
    StubCuda stub;
    const CudaApi& api = safemap::drivers::cuda_driver().api;
    CuCaptureMode mode = CuCaptureMode::relaxed;
    api.cuThreadExchangeStreamCaptureMode(&mode);
    api.cuThreadExchangeStreamCaptureMode(&mode);
    CHECK(stub.take_findings() == "");
    api.cuThreadExchangeStreamCaptureMode(&mode);
    CHECK(stub.take_findings() == "the capture mode of this thread was changed");
}

TEST_CASE("the stub finds a kernel that reads before the copy that it needs") {
    if (is_on_gpu()) return;
    const auto read = [](Program& program, auto&& wait) {
        program.copy(program.one);
        const CuEvent event = program.record(program.one);
        wait(event);
        program.read(program.two);
        program.api.cuStreamSynchronize(program.two);
    };
    const std::string fault = "stream 1 reads memory that stream 0 writes, without waiting for it";
    CHECK(findings_of([&](Program& program) { read(program, [](CuEvent) {}); }) == fault);
    // A wait of the other stream, or an event from before the copy, is not enough.
    CHECK(findings_of([&](Program& program) {
              read(program, [&](CuEvent event) { program.api.cuStreamWaitEvent(program.one, event, 0); });
          }) == fault);
    CHECK(findings_of([&](Program& program) {
              const CuEvent early = program.record(program.one);
              read(program, [&](CuEvent) { program.api.cuStreamWaitEvent(program.two, early, 0); });
          }) == fault);
    // A question whose answer is "not yet" does not wait.
    CHECK(findings_of([&](Program& program) {
              program.stub.set("lag", 1);
              read(program, [&](CuEvent event) { CHECK(program.api.cuEventQuery(event) == CuResult::not_ready); });
          }) == fault);
    CHECK(findings_of([&](Program& program) {
              read(program, [&](CuEvent event) { program.api.cuStreamWaitEvent(program.two, event, 0); });
          }) == "");
    CHECK(findings_of([&](Program& program) {
              read(program, [&](CuEvent event) { program.api.cuEventSynchronize(event); });
          }) == "");
    CHECK(findings_of([&](Program& program) {
              read(program, [&](CuEvent event) { CHECK(program.api.cuEventQuery(event) == CuResult::success); });
          }) == "");
}

TEST_CASE("the stub knows what an event is after, through other streams") {
    if (is_on_gpu()) return;
    CHECK(findings_of([&](Program& program) {
              void* const third = program.stub.make_stream();
              program.copy(program.one);
              program.api.cuStreamWaitEvent(program.two, program.record(program.one), 0);
              const CuEvent event = program.record(program.two);
              program.api.cuStreamWaitEvent(static_cast<CuStream>(third), event, 0);
              program.read(static_cast<CuStream>(third));
              program.stub.synchronize(third);
              CHECK(program.sum == program.stub.checksum(std::span(program.buffer).first(size)));
          }) == "");
}

TEST_CASE("the stub finds a copy that overwrites what a kernel still reads") {
    if (is_on_gpu()) return;
    const auto overwrite = [](Program& program, bool waits) {
        program.copy(program.one);
        program.api.cuStreamSynchronize(program.one);
        program.read(program.two);
        if (waits) program.api.cuStreamWaitEvent(program.one, program.record(program.two), 0);
        program.copy(program.one);
    };
    CHECK(findings_of([&](Program& program) { overwrite(program, false); }) ==
          "stream 0 writes memory that stream 1 reads, without waiting for it");
    CHECK(findings_of([&](Program& program) { overwrite(program, true); }) == "");
}

TEST_CASE("the stub finds two copies to the same bytes, and none beside each other") {
    if (is_on_gpu()) return;
    const auto copy = [](Program& program, CuPointer at, CuStream stream) {
        program.api.cuMemcpyHtoDAsync_v2(program.memory + at, program.buffer.data(), 100, stream);
    };
    CHECK(findings_of([&](Program& program) {
              copy(program, 0, program.one);
              copy(program, 99, program.two);
          }) == "stream 1 writes memory that stream 0 writes, without waiting for it");
    CHECK(findings_of([&](Program& program) {
              copy(program, 0, program.one);
              copy(program, 100, program.two);
          }) == "");
}

TEST_CASE("the stub tells rows that meet from rows between each other") {
    if (is_on_gpu()) return;
    const auto rows = [](Program& program, CuPointer at, CuStream stream) {
        safemap::drivers::CuCopy2D copy;
        copy.src_host = program.buffer.data();
        copy.src_pitch = 50;
        copy.dst_device = program.memory + at;
        copy.dst_pitch = 100;
        copy.width = 50;
        copy.height = 9;
        CHECK(program.api.cuMemcpy2DAsync_v2(&copy, stream) == CuResult::success);
    };
    for (const CuPointer at : {50U, 49U, 51U, 0U}) {
        CAPTURE(at);
        const std::string found = findings_of([&](Program& program) {
            rows(program, 0, program.one);
            rows(program, at, program.two);
        });
        CHECK(found == (at == 50 ? "" : "stream 1 writes memory that stream 0 writes, without waiting for it"));
    }
}

TEST_CASE("the stub finds an unsafe call while a stream is captured") {
    if (is_on_gpu()) return;
    const auto allocate = [](Program& program, CuCaptureMode capture, CuCaptureMode thread, bool elsewhere) {
        CuCaptureMode mode = thread;
        CuPointer address = 0;
        program.stub.begin_capture(program.two, capture);
        const auto call = [&] {
            program.api.cuCtxPushCurrent_v2(program.context);
            program.api.cuThreadExchangeStreamCaptureMode(&mode);
            const CuResult result = program.api.cuMemAlloc_v2(&address, 1);
            if (result == CuResult::success) program.api.cuMemFree_v2(address);
            program.api.cuThreadExchangeStreamCaptureMode(&mode);
            CuContext popped = nullptr;
            program.api.cuCtxPopCurrent_v2(&popped);
        };
        if (elsewhere) std::thread(call).join();
        else call();
        return program.stub.end_capture(program.two);
    };
    const std::string fault = "cuMemAlloc_v2 ended the capture of a stream";
    for (const bool elsewhere : {false, true}) {
        CAPTURE(elsewhere);
        CHECK(findings_of([&](Program& program) {
                  CHECK_FALSE(allocate(program, CuCaptureMode::global, CuCaptureMode::global, elsewhere));
              }) == fault);
        CHECK(findings_of([&](Program& program) {
                  CHECK(allocate(program, CuCaptureMode::global, CuCaptureMode::relaxed, elsewhere));
              }) == "");
        CHECK(findings_of([&](Program& program) {
                  CHECK(allocate(program, CuCaptureMode::relaxed, CuCaptureMode::global, elsewhere));
              }) == "");
        CHECK(findings_of([&](Program& program) {
                  const bool whole =
                      allocate(program, CuCaptureMode::thread_local_mode, CuCaptureMode::global, elsewhere);
                  CHECK(whole == elsewhere);
              }) == (elsewhere ? "" : fault));
    }
}

TEST_CASE("the stub keeps what is in a stream that is held, and its memory within the limit") {
    if (is_on_gpu()) return;
    CHECK(findings_of([](Program& program) {
              program.stub.hold(program.one);
              program.copy(program.one);
              const CuEvent event = program.record(program.one);
              CHECK(program.api.cuEventQuery(event) == CuResult::not_ready);
              CHECK(std::memcmp(reinterpret_cast<void*>(program.memory), program.buffer.data(), size) != 0);
              program.stub.release(program.one);
              CHECK(program.api.cuEventQuery(event) == CuResult::success);
              program.stub.set("memory", 2 * size);
              CuPointer more = 0;
              CHECK(program.api.cuMemAlloc_v2(&more, size + 1) == CuResult::out_of_memory);
              CHECK(program.api.cuMemAlloc_v2(&more, size) == CuResult::success);
              CHECK(program.api.cuMemFree_v2(more) == CuResult::success);
              CHECK(program.stub.get("peak_memory") == 2 * size);
          }) == "");
}

}  // namespace cuda_stub_test
