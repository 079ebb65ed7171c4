// Keeps what the program under test made in the driver, and gives back what it left behind.
#include "cuda/relay/relay.hpp"

#include <algorithm>

namespace relay {
namespace {

/// Objects that the program under test left behind.
struct Leftovers {
    std::vector<Stream> streams;
    std::map<CuEvent, std::uint64_t> events;
    std::map<CuMemoryPool, Pool> pools;
    std::map<CuPointer, Allocation> allocations;
    std::map<CuPointer, std::size_t> reservations;
    std::map<CuMemoryHandle, Physical> physical;
    std::map<void*, std::size_t> registrations;
    std::map<int, std::uint64_t> retained;

    bool empty() const {
        return streams.empty() && events.empty() && pools.empty() && allocations.empty() && reservations.empty() &&
               physical.empty() && registrations.empty() && retained.empty();
    }
};

Leftovers take_leftovers() {
    State& all = state();
    const std::lock_guard lock(all.mutex);
    Leftovers left;
    left.streams.swap(all.streams);
    left.events.swap(all.events);
    left.pools.swap(all.pools);
    left.allocations.swap(all.allocations);
    left.reservations.swap(all.reservations);
    left.physical.swap(all.physical);
    left.registrations.swap(all.registrations);
    left.retained.swap(all.retained);
    return left;
}

void give_back(const Leftovers& left) {
    if (left.empty()) return;
    const Entry entry;
    for (const Stream& stream : left.streams)
        if (!stream.destroyed && !wait_for_stream(stream.handle)) complain("a stream does not end");
    for (const auto& [address, allocation] : left.allocations)
        if (allocation.mapped) SAFEMAP_RELAY_FORWARD(cuMemUnmap, address, allocation.size);
        else SAFEMAP_RELAY_FORWARD(cuMemFree_v2, address);
    for (const auto& [handle, memory] : left.physical)
        if (memory.has_handle) SAFEMAP_RELAY_FORWARD(cuMemRelease, handle);
    for (const auto& [address, size] : left.reservations) SAFEMAP_RELAY_FORWARD(cuMemAddressFree, address, size);
    for (const auto& [pool, about] : left.pools) SAFEMAP_RELAY_FORWARD(cuMemPoolDestroy, pool);
    for (const auto& [event, lag] : left.events) SAFEMAP_RELAY_FORWARD(cuEventDestroy_v2, event);
    for (const Stream& stream : left.streams)
        if (!stream.destroyed) SAFEMAP_RELAY_FORWARD(cuStreamDestroy_v2, stream.handle);
    for (const auto& [address, size] : left.registrations) SAFEMAP_RELAY_FORWARD(cuMemHostUnregister, address);
    for (const auto& [device, times] : left.retained)
        for (std::uint64_t i = 0; i < times; ++i) SAFEMAP_RELAY_FORWARD(cuDevicePrimaryCtxRelease_v2, device);
}

}  // namespace

State& state() {
    static State& only = *new State;  // threads that end late still have it
    return only;
}

Thread& this_thread() {
    thread_local Thread thread;
    return thread;
}

Thread::~Thread() {
    if (!contexts.empty()) find("a context was left behind on a thread that ended");
    if (mode != CuCaptureMode::global) find("a thread ended with another capture mode than it had");
}

void Thread::clear() {
    for (; !contexts.empty(); contexts.pop_back()) {
        CuContext popped = nullptr;
        SAFEMAP_RELAY_FORWARD(cuCtxPopCurrent_v2, &popped);
    }
    if (mode == CuCaptureMode::global) return;
    mode = CuCaptureMode::global;
    CuCaptureMode before = mode;
    SAFEMAP_RELAY_FORWARD(cuThreadExchangeStreamCaptureMode, &before);
}

Stream* State::stream_of(const void* handle) {
    for (Stream& stream : streams)
        if (stream.handle == handle && !stream.destroyed) return &stream;
    return nullptr;
}

bool State::has_stream(const void* handle) {
    if (is_default(handle) || stream_of(handle) != nullptr) return true;
    find("a stream that does not exist was used");
    return false;
}

bool State::has_event(CuEvent event) {
    if (events.contains(event)) return true;
    find("an event that does not exist was used");
    return false;
}

bool State::has_pool(CuMemoryPool pool) {
    if (pools.contains(pool)) return true;
    find("a pool that does not exist was used");
    return false;
}

bool State::is_device(int device) const { return device >= 0 && static_cast<std::uint64_t>(device) < options.devices; }

std::uint64_t State::used(int device) const {
    const auto plain = plain_used.find(device);
    std::uint64_t sum = plain == plain_used.end() ? 0 : plain->second;
    for (const auto& [handle, pool] : pools)
        if (pool.device == device) sum += pool.reserved;
    return sum;
}

void find(const std::string& text) {
    const std::lock_guard lock(state().mutex);
    state().find(text);
}

bool has_stream(const void* handle) {
    const std::lock_guard lock(state().mutex);
    return state().has_stream(handle);
}

bool has_pool(CuMemoryPool pool) {
    const std::lock_guard lock(state().mutex);
    return state().has_pool(pool);
}

CuResult decide(const char* name, unsigned needs) {
    CuResult fails = CuResult::success;
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        fails = all.note_call(name);
        if (fails == CuResult::success && (needs & works_when_dead) == 0 && all.dead != CuResult::success)
            return all.dead;
        if (fails == CuResult::success && (needs & context) != 0 && this_thread().contexts.empty()) {
            all.find(std::string(name) + " was called without a current context");
            return CuResult::invalid_context;
        }
    }
    if (is_sticky(fails)) break_device(fails);
    return fails;
}

CuResult after_wait(CuResult result) {
    const std::lock_guard lock(state().mutex);
    return state().dead != CuResult::success ? state().dead : result;
}

void break_device(CuResult result) {
    {
        const std::lock_guard lock(state().mutex);
        state().dead = result;
    }
    holds().release_all();
}

bool wait_for_stream(CuStream stream) {
    const auto until = Clock::now() + patience;
    while (SAFEMAP_RELAY_FORWARD(cuStreamQuery, stream) == CuResult::not_ready) {
        if (Clock::now() > until) {
            complain("a wait for a stream takes too long");
            find("a wait for a stream takes too long");
            return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
}

void reset() {
    State& all = state();
    this_thread().clear();
    holds().reset();
    give_back(take_leftovers());
    const std::lock_guard lock(all.mutex);
    all.options = {};
    static_cast<Ledger&>(all) = {};
    all.contexts.clear();
    all.plain_used.clear();
}

}  // namespace relay
