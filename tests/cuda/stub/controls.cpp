// Sets and reports what tests need: options, failures, held streams, kernels of a caller, captures, counters and
// findings.

#include "cuda/stub/stub.hpp"

#include <algorithm>
#include <cstring>
#include <string>

using namespace stub;

namespace {

std::uint64_t* option_of(const std::string& name) {
    Options& options = state().options;
    if (name == "devices") return &options.devices;
    if (name == "memory") return &options.memory;
    if (name == "max_pitch") return &options.max_pitch;
    if (name == "pools") return &options.pools;
    if (name == "virtual_memory") return &options.virtual_memory;
    if (name == "granularity") return &options.granularity;
    if (name == "lockable") return &options.lockable;
    if (name == "lag") return &options.lag;
    return nullptr;
}

Stream* any_stream(void* handle) {
    for (const auto& stream : state().streams)
        if (stream.get() == handle) return stream.get();
    return stream_of(handle);
}

void hold(void* handle, bool held) {
    {
        const std::lock_guard lock(state().mutex);
        if (Stream* const stream = any_stream(handle)) stream->held = held;
    }
    state().changed.notify_all();
}

}  // namespace

extern "C" {

/// Returns 1 if a real device does the work.
int stub_is_real() { return 0; }

/// Forgets everything, and sets all options to their defaults.
void stub_reset() {
    const std::lock_guard lock(state().mutex);
    State& all = state();
    for (const Event* event : all.events) delete event;
    for (const Pool* pool : all.pools) delete pool;
    all.options = {};
    static_cast<Ledger&>(all) = {};
    all.retained.clear();
    all.plain_used.clear();
    all.streams.clear();
    all.default_streams.clear();
    all.thread_streams.clear();
    all.events.clear();
    all.pools.clear();
    all.allocations.clear();
    all.freed.clear();
    all.reservations.clear();
    all.physical.clear();
    all.registrations.clear();
    all.host_reads.clear();
    all.host = {};
    this_thread() = {};
}

int stub_set(const char* option, std::uint64_t value) {
    const std::lock_guard lock(state().mutex);
    std::uint64_t* const found = option_of(option);
    if (found != nullptr) *found = value;
    return found != nullptr;
}

/// Returns a counter, or the number of calls of a function.
std::uint64_t stub_get(const char* counter) {
    const std::lock_guard lock(state().mutex);
    if (std::strcmp(counter, "calls") == 0) return state().calls.size();
    if (std::strcmp(counter, "contexts_here") == 0) return this_thread().contexts.size();
    if (std::strcmp(counter, "live") == 0) return state().live();
    if (std::strcmp(counter, "reserved") == 0) {
        std::uint64_t reserved = 0;
        for (const Pool* pool : state().pools) reserved += pool->reserved;
        return reserved;
    }
    return state().counts[counter];
}

/// Returns the name of a call, by its number since the reset.
const char* stub_call(std::uint64_t number) {
    const std::lock_guard lock(state().mutex);
    return state().call(number);
}

/// Copies finding `number` to `text`. Returns 0 if there is no such finding.
int stub_finding(std::uint64_t number, char* text, std::size_t size) {
    const std::lock_guard lock(state().mutex);
    if (number == 0 && !this_thread().contexts.empty()) {
        state().find("a context was left behind on this thread");
        this_thread().contexts.clear();
    }
    if (number == 0 && this_thread().mode != CuCaptureMode::global) {
        state().find("the capture mode of this thread was changed");
        this_thread().mode = CuCaptureMode::global;
    }
    return state().copy_finding(number, text, size) ? 1 : 0;
}

void stub_clear_findings() {
    const std::lock_guard lock(state().mutex);
    state().findings.clear();
}

/// Lets the `nth` call of a function from now fail; with an empty name, the nth call of any.
void stub_fail_nth(const char* call, std::uint64_t nth, int result) {
    const std::lock_guard lock(state().mutex);
    state().failures.push_back({call, nth, static_cast<CuResult>(result)});
}

/// Lets all calls fail from now on.
void stub_break(int result) {
    {
        const std::lock_guard lock(state().mutex);
        state().dead = static_cast<CuResult>(result);
    }
    state().changed.notify_all();
}

/// Holds back what is in a stream, and what will be.
void stub_hold(void* stream) { hold(stream, true); }
void stub_release(void* stream) { hold(stream, false); }

/// Returns a stream of the program under test, by the order in which they were made, or null.
void* stub_stream(std::size_t number) {
    const std::lock_guard lock(state().mutex);
    for (const auto& stream : state().streams)
        if (!stream->of_caller && number-- == 0) return stream.get();
    return nullptr;
}

int stub_priority(void* handle) {
    const std::lock_guard lock(state().mutex);
    const Stream* const stream = any_stream(handle);
    return stream == nullptr ? 0 : stream->priority;
}

/// Makes a stream of a caller.
void* stub_make_stream(int device) {
    const std::lock_guard lock(state().mutex);
    return &make_stream(device, 0, true);
}

/// Puts a kernel into a stream that reads memory. When the kernel runs, it sets the checksum of the bytes.
int stub_kernel_read(void* handle, std::uint64_t address, std::size_t size, std::uint64_t* sum) {
    const std::lock_guard lock(state().mutex);
    Stream* const stream = any_stream(handle);
    const Area area{address, size, size, 1};
    const auto allocation = holder_of(area, "a kernel");
    if (stream == nullptr || allocation == nullptr) return 0;
    stream->before.join(state().host);
    touch(*allocation, area, false, *stream, stream->queued + 1);
    put(*stream, {[=] { *sum = checksum(area), static_cast<void>(allocation); }, 0, 0});
    return 1;
}

/// Waits for a stream of a caller, as the program would do.
void stub_synchronize(void* handle) {
    std::unique_lock lock(state().mutex);
    Stream* const stream = any_stream(handle);
    if (stream == nullptr) return;
    const Moment before = stream->before;
    if (wait_until_done(lock, *stream, stream->queued) == CuResult::success) host_learns(before);
}

std::uint64_t stub_checksum(const void* bytes, std::size_t size) {
    return checksum({reinterpret_cast<std::uintptr_t>(bytes), size, size, 1});
}

void stub_begin_capture(void* handle, int mode) {
    const std::lock_guard lock(state().mutex);
    Stream* const stream = any_stream(handle);
    if (stream == nullptr) return;
    stream->capturing = true;
    stream->capture_invalid = false;
    stream->capture_mode = static_cast<CuCaptureMode>(mode);
    stream->capturer = std::this_thread::get_id();
}

/// Returns 1 if the capture succeeded.
int stub_end_capture(void* handle) {
    const std::lock_guard lock(state().mutex);
    Stream* const stream = any_stream(handle);
    if (stream == nullptr || !stream->capturing) return 0;
    stream->capturing = false;
    return stream->capture_invalid ? 0 : 1;
}

}  // extern "C"
