// Functions of the driver that safemap does not call, but the relay (../relay), which is tested over the stub.

#include "cuda/stub/stub.hpp"

#include <cstdint>
#include <cstdlib>

using namespace stub;

extern "C" {

using CuGraph = void*;

void stub_begin_capture(void* stream, int mode);
int stub_end_capture(void* stream);

CuResult cuMemHostAlloc(void** memory, std::size_t size, unsigned) {
    SAFEMAP_STUB_ENTER(cuMemHostAlloc, Call::context | Call::no_capture);
    *memory = std::malloc(size);
    return *memory == nullptr ? CuResult::out_of_memory : CuResult::success;
}

CuResult cuMemHostGetDevicePointer_v2(CuPointer* address, void* memory, unsigned) {
    SAFEMAP_STUB_ENTER(cuMemHostGetDevicePointer_v2, Call::context);
    *address = reinterpret_cast<std::uintptr_t>(memory);
    return CuResult::success;
}

CuResult cuLaunchHostFunc(CuStream handle, void (*function)(void*), void* data) {
    SAFEMAP_STUB_ENTER(cuLaunchHostFunc, Call::context);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    put(*stream, {[=] { function(data); }, 0, 0});
    return CuResult::success;
}

/// Only for the comparison "at least".
CuResult cuStreamWaitValue32_v2(CuStream handle, CuPointer word, std::uint32_t value, unsigned how) {
    SAFEMAP_STUB_ENTER(cuStreamWaitValue32_v2, Call::context);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    if (how != 0) return CuResult::not_supported;
    const auto is_there = [=] {
        const std::uint32_t now = __atomic_load_n(reinterpret_cast<const std::uint32_t*>(word), __ATOMIC_SEQ_CST);
        return static_cast<std::int32_t>(now - value) >= 0;
    };
    put(*stream, {nullptr, 0, 0, is_there});
    return CuResult::success;
}

CuResult cuStreamCreate(CuStream* stream, unsigned) {
    SAFEMAP_STUB_ENTER(cuStreamCreate, Call::context | Call::no_capture);
    *stream = reinterpret_cast<CuStream>(&make_stream(current_device(), 0, true));
    return CuResult::success;
}

CuResult cuStreamQuery(CuStream handle) {
    SAFEMAP_STUB_ENTER(cuStreamQuery, Call::context | Call::no_capture);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    const Moment before = stream->before;
    if (!run_until(*stream, stream->queued)) return CuResult::not_ready;
    host_learns(before);
    return CuResult::success;
}

CuResult cuStreamBeginCapture_v2(CuStream stream, CuCaptureMode mode) {
    stub_begin_capture(stream, static_cast<int>(mode));
    return CuResult::success;
}

CuResult cuStreamEndCapture(CuStream stream, CuGraph* graph) {
    *graph = nullptr;
    return stub_end_capture(stream) != 0 ? CuResult::success : CuResult::stream_capture_invalidated;
}

CuResult cuGraphDestroy(CuGraph) { return CuResult::success; }

}  // extern "C"
