// Runs the queued work of streams, and compares the vector clocks of accesses that overlap.
#include "cuda/stub/stub.hpp"

#include "cuda/stub/checksum.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace stub {
namespace {

constexpr std::size_t guard = 256;
constexpr std::byte guard_byte{0xAB};
constexpr std::byte fresh_byte{0xCD};
constexpr std::byte freed_byte{0xEE};
constexpr std::size_t most_freed = 64;  // allocations whose memory stays after they are freed

/// Returns true if an operation that is put into `stream` now needs to wait for an earlier one, and does not.
bool in_conflict(const Access& earlier, const Area& area, bool writes, const Stream& stream) {
    if (!earlier.writes && !writes) return false;
    if (earlier.stream == stream.id || earlier.number <= stream.before.of(earlier.stream)) return false;
    return earlier.area.overlaps(area);
}

bool guards_are_whole(const Allocation& allocation) {
    const auto* const begin = reinterpret_cast<const std::byte*>(allocation.address);
    const auto whole = [](const std::byte* from) {
        return std::all_of(from, from + guard, [](std::byte byte) { return byte == guard_byte; });
    };
    return whole(begin - guard) && whole(begin + allocation.size);
}

const char* name_of(bool writes) { return writes ? "writes" : "reads"; }

}  // namespace

void Moment::raise(std::size_t stream, std::uint64_t number) {
    if (stream >= done_.size()) done_.resize(stream + 1);
    done_[stream] = std::max(done_[stream], number);
}

void Moment::join(const Moment& other) {
    for (std::size_t i = 0; i < other.done_.size(); ++i) raise(i, other.done_[i]);
}

bool Area::overlaps(const Area& other) const {
    if (end() <= other.begin || other.end() <= begin) return false;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::uintptr_t from = begin + row * pitch;
        if (from >= other.end() || from + width <= other.begin) continue;
        // The last row of the other that does not begin after this one, and the next.
        const std::size_t i = from < other.begin || other.rows == 1 ? 0 : (from - other.begin) / other.pitch;
        const std::uintptr_t theirs = other.begin + i * other.pitch;
        if (from < theirs + other.width && theirs < from + width) return true;
        if (i + 1 < other.rows && theirs + other.pitch < from + width) return true;
    }
    return false;
}

std::uint64_t checksum(const Area& area) {
    RowChecksum sum;
    for (std::size_t row = 0; row < area.rows; ++row)
        sum.add(reinterpret_cast<const void*>(area.begin + row * area.pitch), area.width);
    return sum.value();
}

State& state() {
    static State& only = *new State;  // threads that end late still have it
    return only;
}

Thread& this_thread() {
    thread_local Thread thread;
    return thread;
}

Thread::~Thread() {
    if (contexts.empty() && mode == CuCaptureMode::global) return;
    const std::lock_guard lock(state().mutex);
    if (!contexts.empty()) state().find("a context was left behind on a thread that ended");
    if (mode != CuCaptureMode::global) state().find("a thread ended with another capture mode than it had");
}

int current_device() { return this_thread().contexts.back(); }

bool is_device(int device) { return device >= 0 && static_cast<std::uint64_t>(device) < state().options.devices; }

std::uint64_t State::used(int device) const {
    std::uint64_t sum =
        static_cast<std::size_t>(device) < plain_used.size() ? plain_used[static_cast<std::size_t>(device)] : 0;
    for (const Pool* pool : pools)
        if (pool->device == device) sum += pool->reserved;
    return sum;
}

Call::Call(const char* name, unsigned needs) : lock_(state().mutex), result_(decide(name, needs)) {}

CuResult Call::decide(const char* name, unsigned needs) {
    State& all = state();
    const CuResult fails = all.note_call(name);
    if (is_sticky(fails)) all.dead = fails;
    if (fails != CuResult::success) return fails;
    if (all.dead != CuResult::success && (needs & works_when_dead) == 0) return all.dead;
    if ((needs & context) != 0 && this_thread().contexts.empty()) {
        all.find(std::string(name) + " was called without a current context");
        return CuResult::invalid_context;
    }
    if ((needs & no_capture) == 0 || this_thread().mode == CuCaptureMode::relaxed) return CuResult::success;
    for (const auto& stream : all.streams) {
        if (!stream->capturing || stream->capture_mode == CuCaptureMode::relaxed) continue;
        const bool own = stream->capturer == std::this_thread::get_id();
        const bool for_all =
            stream->capture_mode == CuCaptureMode::global && this_thread().mode == CuCaptureMode::global;
        if (!own && !for_all) continue;
        stream->capture_invalid = true;
        all.find(std::string(name) + " ended the capture of a stream");
        return CuResult::stream_capture_unsupported;
    }
    return CuResult::success;
}

Stream* stream_of(void* handle) {
    State& all = state();
    if (handle == reinterpret_cast<void*>(2)) {
        const int device = this_thread().contexts.empty() ? 0 : current_device();
        Stream*& stream = all.thread_streams[{std::this_thread::get_id(), device}];
        if (stream == nullptr) stream = &make_stream(device, 0, true);
        return stream;
    }
    if (handle == nullptr || handle == reinterpret_cast<void*>(1)) {
        if (this_thread().contexts.empty()) return nullptr;
        const int device = this_thread().contexts.back();
        Stream*& stream = all.default_streams[device];
        if (stream == nullptr) stream = &make_stream(device, 0, true);
        return stream;
    }
    for (const auto& stream : all.streams)
        if (stream.get() == handle && !stream->destroyed) return stream.get();
    all.find("a stream that does not exist was used");
    return nullptr;
}

Stream& make_stream(int device, int priority, bool of_caller) {
    auto stream = std::make_unique<Stream>();
    stream->id = state().streams.size();
    stream->device = device;
    stream->priority = priority;
    stream->of_caller = of_caller;
    state().streams.push_back(std::move(stream));
    return *state().streams.back();
}

std::uint64_t put(Stream& stream, Operation operation) {
    stream.before.join(state().host);
    stream.pending.push_back(std::move(operation));
    stream.before.raise(stream.id, ++stream.queued);
    return stream.queued;
}

bool run_until(Stream& stream, std::uint64_t number) {
    while (stream.done < number) {
        if (stream.held) return false;
        const Operation& next = stream.pending.front();
        if (next.after_number > 0 && !run_until(*state().streams[next.after_stream], next.after_number)) return false;
        if (next.ready && !next.ready()) return false;
        if (next.run) next.run();
        stream.pending.pop_front();
        ++stream.done;
    }
    return true;
}

CuResult wait_until_done(std::unique_lock<std::mutex>& lock, Stream& stream, std::uint64_t number) {
    while (!run_until(stream, number)) {
        state().changed.wait_for(lock, std::chrono::milliseconds(1));  // a word that is waited for tells nobody
        if (state().dead != CuResult::success) return state().dead;
    }
    return CuResult::success;
}

void host_learns(const Moment& moment) { state().host.join(moment); }

std::shared_ptr<Allocation> holder_of(const Area& area, const char* call) {
    State& all = state();
    auto at = all.allocations.upper_bound(area.begin);
    if (at != all.allocations.begin() && std::prev(at)->second->address + std::prev(at)->second->size >= area.end()) {
        const auto& allocation = std::prev(at)->second;
        if (!allocation->accessible) all.find(std::string(call) + " uses memory without access");
        if (!allocation->freed) return allocation;
        all.find(std::string(call) + " uses memory that was freed");
        return nullptr;
    }
    const auto reserved = all.reservations.upper_bound(area.begin);
    if (reserved != all.reservations.begin() &&
        std::prev(reserved)->first + std::prev(reserved)->second.size >= area.end()) {
        all.find(std::string(call) + " uses addresses without memory");
        return nullptr;
    }
    all.find(std::string(call) + " reaches outside device memory");
    return nullptr;
}

void touch(Allocation& allocation, const Area& area, bool writes, const Stream& stream, std::uint64_t number) {
    State& all = state();
    std::erase_if(allocation.accesses,
                  [&](const Access& access) { return access.number <= all.host.of(access.stream); });
    for (const Access& earlier : allocation.accesses) {
        if (!in_conflict(earlier, area, writes, stream)) continue;
        all.find(std::string("stream ") + std::to_string(stream.id) + " " + name_of(writes) + " memory that stream " +
                 std::to_string(earlier.stream) + " " + name_of(earlier.writes) + ", without waiting for it");
    }
    allocation.accesses.push_back({area, writes, stream.id, number});
}

std::shared_ptr<Allocation> allocate(std::size_t size, int device, Pool* pool) {
    State& all = state();
    const std::uint64_t more = pool == nullptr ? size : std::max(pool->reserved, pool->used + size) - pool->reserved;
    const std::uint64_t used = all.used(device);
    if (size > all.options.memory || more > all.options.memory - std::min(used, all.options.memory)) return nullptr;
    auto made = std::make_shared<Allocation>();
    made->size = size;
    made->device = device;
    made->pool = pool;
    made->storage.assign(size + 3 * guard, guard_byte);
    const auto begin = reinterpret_cast<std::uintptr_t>(made->storage.data()) + guard;
    made->address = (begin + guard - 1) / guard * guard;
    std::memset(reinterpret_cast<void*>(made->address), static_cast<int>(fresh_byte), size);
    if (pool == nullptr) {
        all.plain_used[static_cast<std::size_t>(device)] += size;
    } else {
        pool->reserved += more;
        pool->used += size;
    }
    all.allocations[made->address] = made;
    all.count("allocations");
    all.count("live_allocations");
    all.count("live_memory", size);
    all.raise_peak();
    return made;
}

CuResult free_memory(std::uintptr_t address, const Moment& ordered, Stream* stream) {
    State& all = state();
    const auto at = all.allocations.find(address);
    if (at == all.allocations.end() || at->second->freed) {
        all.find("memory was freed twice, or is not device memory");
        return CuResult::invalid_value;
    }
    const std::shared_ptr<Allocation> allocation = at->second;
    for (const Access& access : allocation->accesses)
        if (access.number > ordered.of(access.stream) && (stream == nullptr || access.stream != stream->id))
            all.find("memory was freed while stream " + std::to_string(access.stream) + " " + name_of(access.writes) +
                     " it");
    if (!guards_are_whole(*allocation)) all.find("something wrote outside of an allocation");
    allocation->freed = true;
    all.counts["live_allocations"] -= 1;
    all.counts["live_memory"] -= allocation->size;
    if (allocation->pool == nullptr) all.plain_used[static_cast<std::size_t>(allocation->device)] -= allocation->size;
    else allocation->pool->used -= allocation->size;
    const auto poison = [allocation] {
        std::memset(reinterpret_cast<void*>(allocation->address), static_cast<int>(freed_byte), allocation->size);
    };
    if (stream == nullptr) poison();
    else put(*stream, {poison, 0, 0});
    all.freed.push_back(address);
    if (all.freed.size() > most_freed) {
        all.allocations.erase(all.freed.front());
        all.freed.pop_front();
    }
    return CuResult::success;
}

}  // namespace stub
