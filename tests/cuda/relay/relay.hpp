// A CUDA driver that passes each call on to the real one, counts, and has the controls of the stub (../stub), so that
// the tests of the stub run on a real GPU. SAFEMAP_REAL_CUDA is the path of the real driver.
//
// The findings are those that can be seen from outside of a driver: a context that stays current, a capture mode that
// is not put back, and uses of memory, events, streams, pools or registrations that do not exist. Left out is all that
// only a simulation sees: work that is not in order, memory that is freed or unregistered too early, staging buffers
// that are written too early, copies outside of memory, and calls that end a capture. There the wrong values, or the
// error of the real driver, are what a test sees.
#pragma once

#include "cuda/stub/ledger.hpp"
#include "drivers/cuda_api.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace relay {

using namespace safemap::drivers;
using Clock = std::chrono::steady_clock;

using CuGraph = void*;
using CuHostFunction = void (*)(void* data);

constexpr unsigned cu_mem_host_portable_mapped = 3;
constexpr unsigned cu_wait_at_least = 0;

/// The longest that a control waits, and that a stream stays held.
constexpr std::chrono::seconds patience{20};

// Functions of the real driver that only the controls need.
#define SAFEMAP_RELAY_FUNCTIONS(X)                                                                        \
    X(cuMemHostAlloc, true, (void** memory, std::size_t size, unsigned flags))                            \
    X(cuMemHostGetDevicePointer_v2, true, (CuPointer * address, void* memory, unsigned flags))            \
    X(cuLaunchHostFunc, true, (CuStream stream, CuHostFunction function, void* data))                     \
    X(cuStreamCreate, true, (CuStream * stream, unsigned flags))                                          \
    X(cuStreamQuery, true, (CuStream stream))                                                             \
    X(cuStreamWaitValue32_v2, true, (CuStream stream, CuPointer word, std::uint32_t value, unsigned how)) \
    X(cuStreamBeginCapture_v2, true, (CuStream stream, CuCaptureMode mode))                               \
    X(cuStreamEndCapture, true, (CuStream stream, CuGraph * graph))                                       \
    X(cuGraphDestroy, true, (CuGraph graph))

/// The real driver.
struct Driver : CudaApi {
#define SAFEMAP_RELAY_POINTER(name, required, parameters) CuResult(*name) parameters = nullptr;
    SAFEMAP_RELAY_FUNCTIONS(SAFEMAP_RELAY_POINTER)
#undef SAFEMAP_RELAY_POINTER
    int (*stub_finding)(std::uint64_t, char*, std::size_t) = nullptr;  ///< null, unless a stub is the real driver
    void (*stub_clear_findings)() = nullptr;
};

/// Returns the real driver. The first call loads it, and ends the process if it fails.
const Driver& real();
/// Returns the number of real devices.
int real_devices();
/// Returns the primary context of a device, which stays retained.
CuContext primary_context(int device);
/// Says that something went wrong, on the standard error output.
void complain(const std::string& text);
/// Does so if a call of the real driver failed, or took very long.
CuResult reported(const char* call, CuResult result, Clock::time_point start);

/// Calls a function of the real driver. No lock is held: the call may wait for a stream that another thread releases.
template <class Function, class... Arguments>
CuResult forward(const char* name, Function function, Arguments... arguments) {
    const auto start = Clock::now();
    return reported(name, function(arguments...), start);
}

#define SAFEMAP_RELAY_FORWARD(name, ...) relay::forward(#name, relay::real().name, __VA_ARGS__)

/// Makes the primary context of a device current for the calls of a control, which end no capture.
class Entry {
public:
    explicit Entry(int device = 0);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

private:
    CuCaptureMode mode_ = CuCaptureMode::relaxed;
};

/// Streams that are held: each waits for a word of host memory.
class Holds {
public:
    /// Puts a wait into a stream, unless it is held.
    void hold(void* stream);
    void release(void* stream);
    void release_all();
    /// Releases all streams, and forgets them.
    void reset();
    /// Makes the memory of the words.
    void prepare();

private:
    using Key = std::pair<void*, std::thread::id>;

    struct Slot {
        std::size_t word = 0;
        bool held = false;
        Clock::time_point since;
    };

    static Key key_of(void* stream);
    void let_go(Slot& slot);
    void watch();

    std::mutex mutex_;  // no call of the driver is made while it is locked
    std::map<Key, Slot> slots_;
    std::uint32_t* words_ = nullptr;
    std::vector<std::uint32_t> targets_;  ///< a stream goes on when its word is at least this
    CuPointer device_words_ = 0;
    bool watched_ = false;
};

Holds& holds();

/// Puts a copy to the host into a stream, and a function that sets the checksum of the bytes.
bool read_and_sum(CuStream stream, CuPointer address, std::size_t size, std::uint64_t* sum);
/// Makes memory for what kernels read, so that none has to be made while a stream is held.
void prepare_kernels();

/// True for the streams that have no object: the default ones.
inline bool is_default(const void* stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

struct Pool {
    int device = 0;
    std::uint64_t used = 0;
    std::uint64_t reserved = 0;  ///< as the stub would reserve it
};

struct Allocation {
    std::size_t size = 0;
    int device = 0;
    CuMemoryPool pool = nullptr;
    bool mapped = false;  ///< mapped at addresses that stay
};

/// Memory from cuMemCreate(). It exists as long as it has a handle or a mapping.
struct Physical {
    std::size_t size = 0;
    int device = 0;
    bool has_handle = true;
    std::optional<CuPointer> mapped_at = {};
};

struct Stream {
    CuStream handle = nullptr;
    int device = 0;
    int priority = 0;
    bool of_caller = false;
    bool destroyed = false;
};

struct Options {
    std::uint64_t devices = 1;
    std::optional<std::uint64_t> memory;         ///< with it, the relay answers how much memory is free
    std::optional<std::uint64_t> max_pitch;      ///< otherwise that of the real device
    std::uint64_t pools = 1;                     ///< 0: memory pools are not supported
    std::uint64_t virtual_memory = 1;            ///< 0: not supported
    std::uint64_t lockable = ~std::uint64_t{0};  ///< bytes of host memory that can be registered
    std::uint64_t lag = 0;                       ///< queries of each event that are answered with "not ready"
};

/// The contexts and the capture mode of a thread, as far as its calls went through the relay.
struct Thread {
    std::vector<CuContext> contexts;
    CuCaptureMode mode = CuCaptureMode::global;
    Thread() = default;
    ~Thread();
    /// Gives back to the real driver what was left.
    void clear();
};

/// The objects of the program under test. No call of the driver is made while it is locked.
struct State : Ledger {
    std::mutex mutex;
    Options options;

    std::map<CuContext, int> contexts;      ///< their devices
    std::map<int, std::uint64_t> retained;  ///< by device
    std::map<int, std::uint64_t> plain_used;
    std::vector<Stream> streams;
    std::map<CuEvent, std::uint64_t> events;  ///< queries that are still answered with "not ready"
    std::map<CuMemoryPool, Pool> pools;
    std::map<CuPointer, Allocation> allocations;
    std::map<CuPointer, std::size_t> reservations;
    std::map<CuMemoryHandle, Physical> physical;
    std::map<void*, std::size_t> registrations;

    /// Returns a stream that exists, or null. Default streams have none.
    Stream* stream_of(const void* handle);
    /// Returns true if a stream exists, or is a default one. Otherwise that is a finding.
    bool has_stream(const void* handle);
    bool has_event(CuEvent event);
    bool has_pool(CuMemoryPool pool);
    bool is_device(int device) const;
    std::uint64_t used(int device) const;
};

State& state();
Thread& this_thread();
/// Notes a finding.
void find(const std::string& text);
/// Does what State::has_stream() does, with the lock.
bool has_stream(const void* handle);
/// Does what State::has_pool() does, with the lock.
bool has_pool(CuMemoryPool pool);

enum Needs : unsigned { nothing = 0, context = 1, works_when_dead = 4 };

/// Counts a call, and returns the error that it fails with, if it is not to be passed on.
CuResult decide(const char* name, unsigned needs);
/// Returns the result of a wait: that of the real driver, or the error if the device broke meanwhile.
CuResult after_wait(CuResult result);
/// Lets all calls fail from now on, and ends what waits.
void break_device(CuResult result);
/// Waits until a stream did all that is in it. Returns false if that takes too long.
bool wait_for_stream(CuStream stream);
/// Gives back what the program under test left, and forgets everything.
void reset();

#define SAFEMAP_RELAY_ENTER(name, needs) \
    if (const CuResult refused = relay::decide(#name, needs); refused != CuResult::success) return refused

}  // namespace relay

using namespace safemap::drivers;

// The functions of the driver, as safemap calls them. A definition with other parameters does not compile.
extern "C" {
#define SAFEMAP_RELAY_FUNCTION(name, required, parameters) safemap::drivers::CuResult name parameters;
SAFEMAP_CUDA_FUNCTIONS(SAFEMAP_RELAY_FUNCTION)
#undef SAFEMAP_RELAY_FUNCTION
int stub_is_real();
}
