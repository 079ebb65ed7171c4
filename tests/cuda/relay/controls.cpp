// The controls of the stub, on a real device.

#include "cuda/relay/relay.hpp"
#include "cuda/stub/checksum.hpp"

#include <array>
#include <string>

using namespace relay;

namespace {

/// Held while a stream begins to be captured, or to be held: a wait does not get into a capture.
std::mutex& capture_mutex() {
    static std::mutex& only = *new std::mutex;
    return only;
}

std::uint64_t reserved_memory() {
    std::map<CuMemoryPool, Pool> pools;
    bool is_capped = false;
    {
        const std::lock_guard lock(state().mutex);
        pools = state().pools;
        is_capped = state().options.memory.has_value();
    }
    std::uint64_t sum = 0;
    if (pools.empty()) return sum;
    const Entry entry;
    for (const auto& [handle, pool] : pools) {
        std::uint64_t reserved = pool.reserved;
        if (!is_capped)
            SAFEMAP_RELAY_FORWARD(cuMemPoolGetAttribute, handle, CuPoolAttribute::reserved_now,
                                  static_cast<void*>(&reserved));
        sum += reserved;
    }
    return sum;
}

/// Returns true if one allocation holds an area.
bool is_device_memory(std::uint64_t address, std::size_t size) {
    State& all = state();
    const std::lock_guard lock(all.mutex);
    const auto after = all.allocations.upper_bound(address);
    if (after != all.allocations.begin()) {
        const auto& [begin, allocation] = *std::prev(after);
        if (begin + allocation.size >= address + size) return true;
    }
    all.find("a kernel reaches outside device memory");
    return false;
}

/// Returns the device of a stream that exists.
std::optional<int> device_of(const void* handle) {
    const std::lock_guard lock(state().mutex);
    if (is_default(handle)) return handle == nullptr ? std::nullopt : std::optional(0);
    const Stream* const stream = state().stream_of(handle);
    return stream == nullptr ? std::nullopt : std::optional(stream->device);
}

/// Notes a finding of a stub in the place of the real driver, unless the relay has found the same.
void take_over(const std::string& text) {
    const std::lock_guard lock(state().mutex);
    for (const std::string& found : state().findings)
        if (found == text) return;
    state().find("below: " + text);
}

/// Takes over the findings of such a stub.
void take_over_findings() {
    const Driver& driver = real();
    if (driver.stub_finding == nullptr || driver.stub_clear_findings == nullptr) return;
    std::array<char, 256> text = {};
    for (std::uint64_t i = 0; driver.stub_finding(i, text.data(), text.size()) != 0; ++i) take_over(text.data());
    driver.stub_clear_findings();
}

}  // namespace

extern "C" {

int stub_is_real() { return 1; }

void stub_reset() {
    relay::reset();
    if (real().stub_clear_findings != nullptr) real().stub_clear_findings();
}

int stub_set(const char* option, std::uint64_t value) {
    const std::string name = option;
    if (name == "devices" && value > 1 && static_cast<std::uint64_t>(real_devices()) < value) return 0;
    const std::lock_guard lock(state().mutex);
    Options& options = state().options;
    if (name == "devices") options.devices = value;
    else if (name == "memory") options.memory = value;
    else if (name == "max_pitch") options.max_pitch = value;
    else if (name == "pools") options.pools = value;
    else if (name == "virtual_memory") options.virtual_memory = value;
    else if (name == "lockable") options.lockable = value;
    else if (name == "lag") options.lag = value;
    else return 0;
    return 1;
}

std::uint64_t stub_get(const char* counter) {
    const std::string name = counter;
    if (name == "reserved") return reserved_memory();
    if (name == "contexts_here") return this_thread().contexts.size();
    const std::lock_guard lock(state().mutex);
    if (name == "calls") return state().calls.size();
    return name == "live" ? state().live() : state().counts[name];
}

const char* stub_call(std::uint64_t number) {
    const std::lock_guard lock(state().mutex);
    return state().call(number);
}

int stub_finding(std::uint64_t number, char* text, std::size_t size) {
    if (number == 0) {
        Thread& thread = this_thread();
        if (!thread.contexts.empty()) find("a context was left behind on this thread");
        if (thread.mode != CuCaptureMode::global) find("the capture mode of this thread was changed");
        thread.clear();
        take_over_findings();
    }
    const std::lock_guard lock(state().mutex);
    return state().copy_finding(number, text, size) ? 1 : 0;
}

void stub_clear_findings() {
    const std::lock_guard lock(state().mutex);
    state().findings.clear();
}

void stub_fail_nth(const char* call, std::uint64_t nth, int result) {
    const std::lock_guard lock(state().mutex);
    state().failures.push_back({call, nth, static_cast<CuResult>(result)});
}

void stub_break(int result) { break_device(static_cast<CuResult>(result)); }

/// Holds back what will be put into a stream. What is in it already goes on, other than in the stub.
void stub_hold(void* stream) {
    const std::optional<int> device = device_of(stream);
    if (!device) return;
    const Entry entry(*device);
    const std::lock_guard lock(capture_mutex());
    CuCaptureStatus status = CuCaptureStatus::none;
    SAFEMAP_RELAY_FORWARD(cuStreamIsCapturing, static_cast<CuStream>(stream), &status);
    if (status == CuCaptureStatus::none) holds().hold(stream);
}

void stub_release(void* stream) { holds().release(stream); }

void* stub_stream(std::size_t number) {
    const std::lock_guard lock(state().mutex);
    for (const Stream& stream : state().streams)
        if (!stream.of_caller && number-- == 0) return stream.handle;
    return nullptr;
}

int stub_priority(void* handle) {
    const std::lock_guard lock(state().mutex);
    const Stream* const stream = state().stream_of(handle);
    return stream == nullptr ? 0 : stream->priority;
}

/// The legacy default stream waits for the stream, as for those of most programs.
void* stub_make_stream(int device) {
    const Entry entry(device);
    CuStream stream = nullptr;
    if (SAFEMAP_RELAY_FORWARD(cuStreamCreate, &stream, 0U) != CuResult::success) return nullptr;
    const std::lock_guard lock(state().mutex);
    state().streams.push_back({stream, device, 0, true, false});
    return stream;
}

int stub_kernel_read(void* handle, std::uint64_t address, std::size_t size, std::uint64_t* sum) {
    const std::optional<int> device = device_of(handle);
    if (!device || !is_device_memory(address, size)) return 0;
    const Entry entry(*device);
    return read_and_sum(static_cast<CuStream>(handle), address, size, sum) ? 1 : 0;
}

void stub_synchronize(void* handle) {
    const std::optional<int> device = device_of(handle);
    if (!device) return;
    const Entry entry(*device);
    wait_for_stream(static_cast<CuStream>(handle));
}

std::uint64_t stub_checksum(const void* bytes, std::size_t size) {
    RowChecksum checksum;
    checksum.add(bytes, size);
    return checksum.value();
}

void stub_begin_capture(void* handle, int mode) {
    const std::optional<int> device = device_of(handle);
    if (!device) return;
    const Entry entry(*device);
    const std::lock_guard lock(capture_mutex());
    SAFEMAP_RELAY_FORWARD(cuStreamBeginCapture_v2, static_cast<CuStream>(handle), static_cast<CuCaptureMode>(mode));
}

int stub_end_capture(void* handle) {
    const std::optional<int> device = device_of(handle);
    if (!device) return 0;
    const Entry entry(*device);
    CuGraph graph = nullptr;
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuStreamEndCapture, static_cast<CuStream>(handle), &graph);
    if (graph != nullptr) SAFEMAP_RELAY_FORWARD(cuGraphDestroy, graph);
    return result == CuResult::success ? 1 : 0;
}

}  // extern "C"
