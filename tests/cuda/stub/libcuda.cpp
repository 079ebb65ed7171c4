// The functions of the driver for devices, contexts, streams and events, over the state of the stub.

#include "cuda/stub/stub.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>

using namespace stub;

namespace {

struct ErrorText {
    CuResult result;
    const char* name;
    const char* text;
};

constexpr std::array error_texts = {
    ErrorText{CuResult::success, "CUDA_SUCCESS", "no error"},
    ErrorText{CuResult::invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    ErrorText{CuResult::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    ErrorText{CuResult::not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    ErrorText{CuResult::no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    ErrorText{CuResult::invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    ErrorText{CuResult::invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    ErrorText{CuResult::not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    ErrorText{CuResult::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    ErrorText{CuResult::launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    ErrorText{CuResult::unknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorText* text_of(CuResult result) {
    const auto* const found = std::find_if(error_texts.begin(), error_texts.end(),
                                           [&](const ErrorText& row) { return row.result == result; });
    return found == error_texts.end() ? nullptr : found;
}

CuContext context_of(int device) { return reinterpret_cast<CuContext>(static_cast<std::uintptr_t>(device) + 0x1000); }

Event* event_of(CuEvent handle) {
    auto* const event = reinterpret_cast<Event*>(handle);
    if (state().events.contains(event)) return event;
    state().find("an event that does not exist was used");
    return nullptr;
}

}  // namespace

extern "C" {

CuResult cuInit(unsigned) {
    SAFEMAP_STUB_ENTER(cuInit, Call::nothing);
    return all.options.devices == 0 ? CuResult::no_device : CuResult::success;
}

CuResult cuGetErrorName(CuResult result, const char** name) {
    const ErrorText* const row = text_of(result);
    *name = row == nullptr ? nullptr : row->name;
    return row == nullptr ? CuResult::invalid_value : CuResult::success;
}

CuResult cuGetErrorString(CuResult result, const char** text) {
    const ErrorText* const row = text_of(result);
    *text = row == nullptr ? nullptr : row->text;
    return row == nullptr ? CuResult::invalid_value : CuResult::success;
}

CuResult cuDeviceGetCount(int* count) {
    SAFEMAP_STUB_ENTER(cuDeviceGetCount, Call::nothing);
    *count = static_cast<int>(all.options.devices);
    return CuResult::success;
}

CuResult cuDeviceGet(CuDevice* device, int ordinal) {
    SAFEMAP_STUB_ENTER(cuDeviceGet, Call::nothing);
    *device = ordinal;
    return is_device(ordinal) ? CuResult::success : CuResult::invalid_value;
}

CuResult cuDeviceGetName(char* name, int size, CuDevice device) {
    SAFEMAP_STUB_ENTER(cuDeviceGetName, Call::nothing);
    const std::string text = "Stub GPU " + std::to_string(device);
    std::strncpy(name, text.c_str(), static_cast<std::size_t>(size));
    return CuResult::success;
}

CuResult cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice) {
    SAFEMAP_STUB_ENTER(cuDeviceGetAttribute, Call::nothing);
    const std::uint64_t answer = attribute == CuDeviceAttribute::max_pitch                  ? all.options.max_pitch
                                 : attribute == CuDeviceAttribute::virtual_memory_supported ? all.options.virtual_memory
                                                                                            : all.options.pools;
    *value = static_cast<int>(answer);
    return CuResult::success;
}

CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
    SAFEMAP_STUB_ENTER(cuDevicePrimaryCtxRetain, Call::nothing);
    if (!is_device(device)) return CuResult::invalid_value;
    const auto at = static_cast<std::size_t>(device);
    all.retained.resize(std::max(all.retained.size(), at + 1));
    all.plain_used.resize(all.retained.size());
    ++all.retained[at];
    all.count("retained");
    *context = context_of(device);
    return CuResult::success;
}

CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
    SAFEMAP_STUB_ENTER(cuDevicePrimaryCtxRelease_v2, Call::works_when_dead);
    const auto at = static_cast<std::size_t>(device);
    if (at >= all.retained.size() || all.retained[at] == 0) {
        all.find("a context was released too often");
        return CuResult::invalid_context;
    }
    --all.retained[at];
    all.counts["retained"] -= 1;
    return CuResult::success;
}

CuResult cuCtxPushCurrent_v2(CuContext context) {
    SAFEMAP_STUB_ENTER(cuCtxPushCurrent_v2, Call::works_when_dead);
    for (std::size_t device = 0; device < all.retained.size(); ++device) {
        if (context != context_of(static_cast<int>(device)) || all.retained[device] == 0) continue;
        this_thread().contexts.push_back(static_cast<int>(device));
        return CuResult::success;
    }
    all.find("a context that is not retained became current");
    return CuResult::invalid_context;
}

CuResult cuCtxPopCurrent_v2(CuContext* context) {
    SAFEMAP_STUB_ENTER(cuCtxPopCurrent_v2, Call::context | Call::works_when_dead);
    *context = context_of(current_device());
    this_thread().contexts.pop_back();
    return CuResult::success;
}

CuResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    SAFEMAP_STUB_ENTER(cuCtxGetStreamPriorityRange, Call::context);
    *least = 0;
    *greatest = -5;
    return CuResult::success;
}

CuResult cuThreadExchangeStreamCaptureMode(CuCaptureMode* mode) {
    SAFEMAP_STUB_ENTER(cuThreadExchangeStreamCaptureMode, Call::works_when_dead);
    std::swap(*mode, this_thread().mode);
    return CuResult::success;
}

CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int priority) {
    SAFEMAP_STUB_ENTER(cuStreamCreateWithPriority, Call::context | Call::no_capture);
    if (flags != cu_stream_non_blocking) all.find("a stream waits for the legacy default stream");
    *stream = reinterpret_cast<CuStream>(&make_stream(current_device(), priority, false));
    all.count("live_streams");
    return CuResult::success;
}

CuResult cuStreamDestroy_v2(CuStream handle) {
    SAFEMAP_STUB_ENTER(cuStreamDestroy_v2, Call::context | Call::no_capture);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    stream->destroyed = true;
    all.counts["live_streams"] -= 1;
    return CuResult::success;
}

CuResult cuStreamWaitEvent(CuStream handle, CuEvent waited, unsigned) {
    SAFEMAP_STUB_ENTER(cuStreamWaitEvent, Call::context);
    Stream* const stream = stream_of(handle);
    Event* const event = event_of(waited);
    if (stream == nullptr || event == nullptr) return CuResult::invalid_handle;
    if (event->captured && !stream->capturing) {
        all.find("a stream joins a capture by waiting for an event of it");
        return CuResult::captured_event;
    }
    if (stream->capturing && !event->captured) {
        stream->capture_invalid = true;
        all.find("a captured stream waits for an event from outside");
        return CuResult::stream_capture_isolation;
    }
    if (event->stream == nullptr) return CuResult::success;
    stream->before.join(event->before);
    put(*stream, {nullptr, event->stream->id, event->number});
    return CuResult::success;
}

CuResult cuStreamSynchronize(CuStream handle) {
    SAFEMAP_STUB_ENTER(cuStreamSynchronize, Call::context | Call::no_capture);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    const Moment before = stream->before;
    const CuResult result = wait_until_done(call.lock(), *stream, stream->queued);
    if (result == CuResult::success) host_learns(before);
    return result;
}

CuResult cuStreamIsCapturing(CuStream handle, CuCaptureStatus* status) {
    SAFEMAP_STUB_ENTER(cuStreamIsCapturing, Call::context);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    const bool is_default = handle == nullptr || handle == reinterpret_cast<CuStream>(1);
    const auto captures = [](const auto& other) { return other->capturing; };
    if (is_default && std::any_of(all.streams.begin(), all.streams.end(), captures))
        return CuResult::stream_capture_implicit;
    *status = !stream->capturing        ? CuCaptureStatus::none
              : stream->capture_invalid ? CuCaptureStatus::invalidated
                                        : CuCaptureStatus::active;
    return CuResult::success;
}

CuResult cuEventCreate(CuEvent* event, unsigned flags) {
    SAFEMAP_STUB_ENTER(cuEventCreate, Call::context);
    if ((flags & cu_event_disable_timing) == 0) all.find("an event has timing");
    auto* const made = new Event;
    all.events.insert(made);
    all.count("live_events");
    *event = reinterpret_cast<CuEvent>(made);
    return CuResult::success;
}

CuResult cuEventDestroy_v2(CuEvent handle) {
    SAFEMAP_STUB_ENTER(cuEventDestroy_v2, Call::context);
    Event* const event = event_of(handle);
    if (event == nullptr) return CuResult::invalid_handle;
    all.events.erase(event);
    delete event;
    all.counts["live_events"] -= 1;
    return CuResult::success;
}

CuResult cuEventRecord(CuEvent handle, CuStream in) {
    SAFEMAP_STUB_ENTER(cuEventRecord, Call::context);
    Stream* const stream = stream_of(in);
    Event* const event = event_of(handle);
    if (stream == nullptr || event == nullptr || stream->device != current_device()) return CuResult::invalid_handle;
    event->stream = stream;
    event->captured = stream->capturing;
    event->number = put(*stream, {});
    event->before = stream->before;
    event->lag = all.options.lag;
    return CuResult::success;
}

CuResult cuEventQuery(CuEvent handle) {
    SAFEMAP_STUB_ENTER(cuEventQuery, Call::context | Call::no_capture);
    Event* const event = event_of(handle);
    if (event == nullptr) return CuResult::invalid_handle;
    if (event->captured) return CuResult::captured_event;
    if (event->stream == nullptr) return CuResult::success;
    if (event->lag > 0) {
        --event->lag;
        return CuResult::not_ready;
    }
    if (!run_until(*event->stream, event->number)) return CuResult::not_ready;
    host_learns(event->before);
    return CuResult::success;
}

CuResult cuEventSynchronize(CuEvent handle) {
    SAFEMAP_STUB_ENTER(cuEventSynchronize, Call::context | Call::no_capture);
    Event* const event = event_of(handle);
    if (event == nullptr) return CuResult::invalid_handle;
    if (event->captured) return CuResult::captured_event;
    if (event->stream == nullptr) return CuResult::success;
    const Moment before = event->before;
    const CuResult result = wait_until_done(call.lock(), *event->stream, event->number);
    if (result == CuResult::success) host_learns(before);
    return result;
}

}  // extern "C"
