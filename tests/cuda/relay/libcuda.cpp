// The functions of the driver for devices, contexts, streams and events, which the real driver answers.

#include "cuda/relay/relay.hpp"

#include <algorithm>

using namespace relay;

extern "C" {

CuResult cuInit(unsigned flags) {
    SAFEMAP_RELAY_ENTER(cuInit, nothing);
    {
        const std::lock_guard lock(state().mutex);
        if (state().options.devices == 0) return CuResult::no_device;
    }
    return SAFEMAP_RELAY_FORWARD(cuInit, flags);
}

CuResult cuGetErrorName(CuResult result, const char** name) { return real().cuGetErrorName(result, name); }

CuResult cuGetErrorString(CuResult result, const char** text) { return real().cuGetErrorString(result, text); }

CuResult cuDeviceGetCount(int* count) {
    SAFEMAP_RELAY_ENTER(cuDeviceGetCount, nothing);
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuDeviceGetCount, count);
    const std::lock_guard lock(state().mutex);
    *count = std::min(*count, static_cast<int>(state().options.devices));
    return result;
}

CuResult cuDeviceGet(CuDevice* device, int ordinal) {
    SAFEMAP_RELAY_ENTER(cuDeviceGet, nothing);
    {
        const std::lock_guard lock(state().mutex);
        if (!state().is_device(ordinal)) return CuResult::invalid_value;
    }
    return SAFEMAP_RELAY_FORWARD(cuDeviceGet, device, ordinal);
}

CuResult cuDeviceGetName(char* name, int size, CuDevice device) {
    SAFEMAP_RELAY_ENTER(cuDeviceGetName, nothing);
    return SAFEMAP_RELAY_FORWARD(cuDeviceGetName, name, size, device);
}

CuResult cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice device) {
    SAFEMAP_RELAY_ENTER(cuDeviceGetAttribute, nothing);
    {
        const std::lock_guard lock(state().mutex);
        const Options& options = state().options;
        const bool is_pitch = attribute == CuDeviceAttribute::max_pitch && options.max_pitch.has_value();
        const bool has_no_pools = attribute == CuDeviceAttribute::memory_pools_supported && options.pools == 0;
        if (is_pitch) *value = static_cast<int>(*options.max_pitch);
        const bool has_no_virtual_memory =
            attribute == CuDeviceAttribute::virtual_memory_supported && options.virtual_memory == 0;
        if (has_no_pools || has_no_virtual_memory) *value = 0;
        if (is_pitch || has_no_pools || has_no_virtual_memory) return CuResult::success;
    }
    return SAFEMAP_RELAY_FORWARD(cuDeviceGetAttribute, value, attribute, device);
}

CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
    SAFEMAP_RELAY_ENTER(cuDevicePrimaryCtxRetain, nothing);
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        if (!all.is_device(device)) return CuResult::invalid_value;
    }
    static_cast<void>(Entry(device));  // the context of the relay stays, so that each test has it at once
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuDevicePrimaryCtxRetain, context, device);
    if (result != CuResult::success) return result;
    const std::lock_guard lock(all.mutex);
    all.contexts[*context] = device;
    ++all.retained[device];
    all.count("retained");
    return result;
}

CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
    SAFEMAP_RELAY_ENTER(cuDevicePrimaryCtxRelease_v2, works_when_dead);
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        if (all.retained[device] == 0) {
            all.find("a context was released too often");
            return CuResult::invalid_context;
        }
        --all.retained[device];
        all.counts["retained"] -= 1;
    }
    return SAFEMAP_RELAY_FORWARD(cuDevicePrimaryCtxRelease_v2, device);
}

CuResult cuCtxPushCurrent_v2(CuContext context) {
    SAFEMAP_RELAY_ENTER(cuCtxPushCurrent_v2, works_when_dead);
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        const auto found = all.contexts.find(context);
        if (found == all.contexts.end() || all.retained[found->second] == 0) {
            all.find("a context that is not retained became current");
            return CuResult::invalid_context;
        }
    }
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuCtxPushCurrent_v2, context);
    if (result == CuResult::success) this_thread().contexts.push_back(context);
    return result;
}

CuResult cuCtxPopCurrent_v2(CuContext* context) {
    SAFEMAP_RELAY_ENTER(cuCtxPopCurrent_v2, relay::context | works_when_dead);
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuCtxPopCurrent_v2, context);
    if (result != CuResult::success) return result;
    if (*context != this_thread().contexts.back()) find("another context than the last one was current");
    this_thread().contexts.pop_back();
    return result;
}

CuResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    SAFEMAP_RELAY_ENTER(cuCtxGetStreamPriorityRange, context);
    return SAFEMAP_RELAY_FORWARD(cuCtxGetStreamPriorityRange, least, greatest);
}

CuResult cuThreadExchangeStreamCaptureMode(CuCaptureMode* mode) {
    SAFEMAP_RELAY_ENTER(cuThreadExchangeStreamCaptureMode, works_when_dead);
    const CuCaptureMode wanted = *mode;
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuThreadExchangeStreamCaptureMode, mode);
    if (result != CuResult::success) return result;
    if (*mode != this_thread().mode) find("something else changed the capture mode of a thread");
    this_thread().mode = wanted;
    return result;
}

CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int priority) {
    SAFEMAP_RELAY_ENTER(cuStreamCreateWithPriority, context);
    if (flags != cu_stream_non_blocking) find("a stream waits for the legacy default stream");
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuStreamCreateWithPriority, stream, flags, priority);
    if (result != CuResult::success) return result;
    State& all = state();
    const std::lock_guard lock(all.mutex);
    all.streams.push_back({*stream, all.contexts[this_thread().contexts.back()], priority, false, false});
    all.count("live_streams");
    return result;
}

CuResult cuStreamDestroy_v2(CuStream handle) {
    SAFEMAP_RELAY_ENTER(cuStreamDestroy_v2, context);
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        Stream* const stream = all.has_stream(handle) ? all.stream_of(handle) : nullptr;
        if (stream == nullptr) return CuResult::invalid_handle;
        stream->destroyed = true;
        all.counts["live_streams"] -= 1;
    }
    return SAFEMAP_RELAY_FORWARD(cuStreamDestroy_v2, handle);
}

CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
    SAFEMAP_RELAY_ENTER(cuStreamWaitEvent, context);
    {
        const std::lock_guard lock(state().mutex);
        if (!state().has_stream(stream) || !state().has_event(event)) return CuResult::invalid_handle;
    }
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuStreamWaitEvent, stream, event, flags);
    if (result == CuResult::stream_capture_isolation) find("a captured stream waits for an event from outside");
    return result;
}

CuResult cuStreamSynchronize(CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuStreamSynchronize, context);
    if (!has_stream(stream)) return CuResult::invalid_handle;
    return after_wait(SAFEMAP_RELAY_FORWARD(cuStreamSynchronize, stream));
}

CuResult cuStreamIsCapturing(CuStream stream, CuCaptureStatus* status) {
    SAFEMAP_RELAY_ENTER(cuStreamIsCapturing, context);
    if (!has_stream(stream)) return CuResult::invalid_handle;
    return SAFEMAP_RELAY_FORWARD(cuStreamIsCapturing, stream, status);
}

CuResult cuEventCreate(CuEvent* event, unsigned flags) {
    SAFEMAP_RELAY_ENTER(cuEventCreate, context);
    if ((flags & cu_event_disable_timing) == 0) find("an event has timing");
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuEventCreate, event, flags);
    if (result != CuResult::success) return result;
    const std::lock_guard lock(state().mutex);
    state().events[*event] = 0;
    state().count("live_events");
    return result;
}

CuResult cuEventDestroy_v2(CuEvent event) {
    SAFEMAP_RELAY_ENTER(cuEventDestroy_v2, context);
    {
        const std::lock_guard lock(state().mutex);
        if (!state().has_event(event)) return CuResult::invalid_handle;
        state().events.erase(event);
        state().counts["live_events"] -= 1;
    }
    return SAFEMAP_RELAY_FORWARD(cuEventDestroy_v2, event);
}

CuResult cuEventRecord(CuEvent event, CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuEventRecord, context);
    {
        const std::lock_guard lock(state().mutex);
        if (!state().has_stream(stream) || !state().has_event(event)) return CuResult::invalid_handle;
        state().events[event] = state().options.lag;
    }
    return SAFEMAP_RELAY_FORWARD(cuEventRecord, event, stream);
}

CuResult cuEventQuery(CuEvent event) {
    SAFEMAP_RELAY_ENTER(cuEventQuery, context);
    {
        const std::lock_guard lock(state().mutex);
        if (!state().has_event(event)) return CuResult::invalid_handle;
        std::uint64_t& lag = state().events[event];
        if (lag > 0) {
            --lag;
            return CuResult::not_ready;
        }
    }
    return SAFEMAP_RELAY_FORWARD(cuEventQuery, event);
}

CuResult cuEventSynchronize(CuEvent event) {
    SAFEMAP_RELAY_ENTER(cuEventSynchronize, context);
    {
        const std::lock_guard lock(state().mutex);
        if (!state().has_event(event)) return CuResult::invalid_handle;
    }
    return after_wait(SAFEMAP_RELAY_FORWARD(cuEventSynchronize, event));
}

}  // extern "C"
