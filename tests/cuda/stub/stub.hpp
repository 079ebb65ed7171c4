// The state of a CUDA driver without a GPU, for tests. Device memory is host memory. What is put into a stream happens
// as late as a real device might do it: when the host asks for an event, or waits. Which work is ordered before which
// other is known from the calls alone (vector clocks), so a missing wait is found in every run.
#pragma once

#include "cuda/stub/ledger.hpp"
#include "drivers/cuda_api.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stub {

using namespace safemap::drivers;

/// The number of operations of each stream that happened before a point in time.
class Moment {
public:
    std::uint64_t of(std::size_t stream) const { return stream < done_.size() ? done_[stream] : 0; }
    void raise(std::size_t stream, std::uint64_t number);
    void join(const Moment& other);

private:
    std::vector<std::uint64_t> done_;
};

/// Rows of bytes at equal distances.
struct Area {
    std::uintptr_t begin = 0;
    std::size_t width = 0;
    std::size_t pitch = 0;
    std::size_t rows = 1;

    std::uintptr_t end() const { return begin + (rows - 1) * pitch + width; }
    bool overlaps(const Area& other) const;
};

/// Bytes that an operation of a stream reads or writes.
struct Access {
    Area area;
    bool writes = false;
    std::size_t stream = 0;
    std::uint64_t number = 0;
};

struct Pool {
    int device = 0;
    std::uint64_t used = 0;
    std::uint64_t reserved = 0;
    std::uint64_t threshold = 0;
};

struct Allocation {
    std::uintptr_t address = 0;
    std::size_t size = 0;
    int device = 0;
    Pool* pool = nullptr;
    bool freed = false;
    bool accessible = true;                ///< false: mapped, and cuMemSetAccess() was not called
    std::shared_ptr<void> addresses = {};  ///< keeps the addresses of mapped memory
    std::vector<std::byte> storage = {};
    std::vector<Access> accesses = {};
};

/// Addresses, and the memory that is mapped there.
struct Reservation {
    std::size_t size = 0;
    std::shared_ptr<void> bytes = {};
    CuMemoryHandle handle = 0;  ///< 0: no memory
};

/// Memory from cuMemCreate(). It exists as long as it has a handle or a mapping.
struct Physical {
    std::size_t size = 0;
    int device = 0;
    bool has_handle = true;
    std::size_t mappings = 0;
};

struct Operation {
    std::function<void()> run;
    std::size_t after_stream = 0;  ///< this operation waits for operation `after_number` of that stream
    std::uint64_t after_number = 0;
    std::function<bool()> ready = {};  ///< if set, the operation waits until this is true
};

struct Stream {
    std::size_t id = 0;
    int device = 0;
    int priority = 0;
    bool of_caller = false;
    bool destroyed = false;
    bool held = false;
    bool capturing = false;
    bool capture_invalid = false;
    CuCaptureMode capture_mode = CuCaptureMode::global;
    std::thread::id capturer;
    std::deque<Operation> pending;
    std::uint64_t queued = 0;
    std::uint64_t done = 0;
    Moment before;  ///< happened before what is queued next
};

struct Event {
    Stream* stream = nullptr;  ///< null: not recorded
    std::uint64_t number = 0;
    Moment before;
    bool captured = false;
    std::uint64_t lag = 0;  ///< number of queries that are still answered with "not ready"
};

struct Options {
    std::uint64_t devices = 1;
    std::uint64_t memory = std::uint64_t{1} << 32;
    std::uint64_t max_pitch = 2147483647;
    std::uint64_t pools = 1;           ///< 0: memory pools are not supported
    std::uint64_t virtual_memory = 1;  ///< 0: not supported
    std::uint64_t granularity = std::uint64_t{1} << 21;
    std::uint64_t lockable = ~std::uint64_t{0};  ///< bytes of host memory that can be registered
    std::uint64_t lag = 0;                       ///< queries of each event that are answered with "not ready"
};

/// The contexts and the capture mode of a thread.
struct Thread {
    std::vector<int> contexts;  ///< devices
    CuCaptureMode mode = CuCaptureMode::global;
    Thread() = default;
    ~Thread();
};

struct State : Ledger {
    std::mutex mutex;
    std::condition_variable changed;
    Options options;

    std::vector<std::uint64_t> retained;  ///< by device
    std::vector<std::uint64_t> plain_used;
    std::vector<std::unique_ptr<Stream>> streams;
    std::map<int, Stream*> default_streams;
    std::map<std::pair<std::thread::id, int>, Stream*> thread_streams;  ///< default streams of threads, by device
    std::set<Event*> events;
    std::set<Pool*> pools;
    std::map<std::uintptr_t, std::shared_ptr<Allocation>> allocations;
    std::deque<std::uintptr_t> freed;  ///< their memory stays for a while, so that a late access is found
    std::map<std::uintptr_t, Reservation> reservations;
    std::map<CuMemoryHandle, Physical> physical;
    CuMemoryHandle last_handle = 0;
    std::map<std::uintptr_t, std::size_t> registrations;
    std::vector<Access> host_reads;
    Moment host;  ///< the work that the host knows to be done

    std::uint64_t used(int device) const;
};

State& state();
Thread& this_thread();

/// A call of a driver function: holds the lock, counts, and decides whether the call fails.
class Call {
public:
    enum Needs : unsigned { nothing = 0, context = 1, no_capture = 2, works_when_dead = 4 };

    Call(const char* name, unsigned needs);
    CuResult result() const { return result_; }
    std::unique_lock<std::mutex>& lock() { return lock_; }

private:
    CuResult decide(const char* name, unsigned needs);

    std::unique_lock<std::mutex> lock_;
    CuResult result_;
};

/// Begins a function of the driver: `call` holds the lock, and `all` is the state.
#define SAFEMAP_STUB_ENTER(name, needs)                           \
    stub::Call call(#name, needs);                                \
    if (call.result() != CuResult::success) return call.result(); \
    [[maybe_unused]] State& all = stub::state()

/// Returns the stream, or null if there is no such stream. Null and 1 are the default stream of the current context, 2
/// is that of the calling thread.
Stream* stream_of(void* handle);
Stream& make_stream(int device, int priority, bool of_caller);
/// Puts an operation into a stream, and returns its number.
std::uint64_t put(Stream& stream, Operation operation);
/// Does what is in a stream up to an operation, and what that waits for. Returns false if a stream is held.
bool run_until(Stream& stream, std::uint64_t number);
/// Does so, and waits while a stream is held. Returns the error if the device breaks.
CuResult wait_until_done(std::unique_lock<std::mutex>& lock, Stream& stream, std::uint64_t number);
/// Notes that the host knows what happened before a moment.
void host_learns(const Moment& moment);

/// Returns the allocation that holds an area, or null, which is a finding.
std::shared_ptr<Allocation> holder_of(const Area& area, const char* call);
/// Notes that an operation of a stream will read or write device memory. Conflicts with unordered work are findings.
void touch(Allocation& allocation, const Area& area, bool writes, const Stream& stream, std::uint64_t number);
/// Sizes above this are not "out of memory" but "invalid value", as drivers may answer.
constexpr std::size_t largest_size = std::size_t{1} << 46;

/// Returns the memory that was given out for an allocation, or null if the device is full.
std::shared_ptr<Allocation> allocate(std::size_t size, int device, Pool* pool);
/// Frees memory. `ordered` is the moment at which the memory is free: work that is not before it is a finding.
CuResult free_memory(std::uintptr_t address, const Moment& ordered, Stream* stream);
std::uint64_t checksum(const Area& area);

bool is_device(int device);
int current_device();

}  // namespace stub

using namespace safemap::drivers;

// The functions of the driver, as safemap calls them. A definition with other parameters does not compile.
extern "C" {
#define SAFEMAP_STUB_FUNCTION(name, required, parameters) safemap::drivers::CuResult name parameters;
SAFEMAP_CUDA_FUNCTIONS(SAFEMAP_STUB_FUNCTION)
#undef SAFEMAP_STUB_FUNCTION
}
