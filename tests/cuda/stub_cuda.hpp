// The stub of the CUDA driver, as tests see it. The dynamic linker has to find the stub as libcuda.so.1: the tests run
// with its folder in LD_LIBRARY_PATH.
#pragma once

#include "drivers/cuda_api.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// Controls of the stub. There is one stub in a process.
class StubCuda {
public:
    using CuResult = safemap::drivers::CuResult;

    /// Resets the stub. Throws if libcuda.so.1 is not the stub.
    StubCuda();

    /// Returns true if a real GPU does the work, behind a library that counts and has these controls (relay/). There a
    /// held stream does what it had before it was held, and there are few findings.
    bool is_real() const { return is_real_() != 0; }
    /// Forgets everything. No device may be open.
    void reset() { reset_(); }
    /// Sets "devices", "memory" (bytes of each), "max_pitch", "pools" (0: not supported), "virtual_memory" (0: not
    /// supported), "granularity" (bytes; not on a real GPU), "lockable" (bytes of host memory that can be registered)
    /// or "lag" (queries of each event that are answered with "not ready").
    void set(const char* option, std::uint64_t value) {
        if (set_(option, value) == 0) throw std::invalid_argument(option);
    }
    /// Returns a counter: "calls", the name of a function, "copies", "copied_bytes", "allocations", "live_allocations",
    /// "live_memory", "peak_memory", "registrations", "live_registrations", "registered_bytes", "live_events",
    /// "live_streams", "live_pools", "live_handles", "live_reservations", "reserved" (bytes of pools), "retained"
    /// (contexts) or "contexts_here" (current on this thread).
    std::uint64_t get(const char* counter) const { return get_(counter); }
    /// Returns the number of objects of any kind that exist: "live".
    std::uint64_t live() const { return get("live"); }
    /// Returns the names of all calls since the reset.
    std::vector<std::string> calls() const;
    /// Returns the faults of the program under test.
    std::vector<std::string> findings() const;
    /// Returns the findings as one text, and forgets them.
    std::string take_findings();
    /// Lets the nth call of a function from now fail. An empty name is any function. CUDA_ERROR_LAUNCH_FAILED and its
    /// kin let all later calls fail, too.
    void fail_nth(const char* call, std::uint64_t nth, CuResult result) {
        fail_nth_(call, nth, static_cast<int>(result));
    }
    /// Lets all calls fail from now on.
    void break_device(CuResult result) { break_(static_cast<int>(result)); }
    /// Holds back the work of a stream.
    void hold(void* stream) { hold_(stream); }
    void release(void* stream) { release_(stream); }
    /// Returns a stream that the program under test made: for a device of safemap 0 is demand, 1 bulk, 2 side.
    void* stream(std::size_t number) const { return stream_(number); }
    int priority(void* stream) const { return priority_(stream); }
    /// Makes a stream of a caller.
    void* make_stream(int device = 0) { return make_(device); }
    /// Puts a kernel into a stream, which sets `sum` to the checksum of `size` bytes at `address` when it runs. Returns
    /// false if the memory does not exist.
    bool kernel_read(void* stream, const void* address, std::size_t size, std::uint64_t& sum) {
        return kernel_read_(stream, reinterpret_cast<std::uintptr_t>(address), size, &sum) != 0;
    }
    /// Waits on the host for a stream of a caller.
    void synchronize(void* stream) { sync_(stream); }
    std::uint64_t checksum(std::span<const std::byte> bytes) const { return checksum_(bytes.data(), bytes.size()); }
    void begin_capture(void* stream, safemap::drivers::CuCaptureMode mode = safemap::drivers::CuCaptureMode::global) {
        begin_(stream, static_cast<int>(mode));
    }
    /// Returns true if the capture succeeded.
    bool end_capture(void* stream) { return end_(stream) != 0; }

private:
    int (*is_real_)() = nullptr;
    void (*reset_)() = nullptr;
    int (*set_)(const char*, std::uint64_t) = nullptr;
    std::uint64_t (*get_)(const char*) = nullptr;
    const char* (*call_)(std::uint64_t) = nullptr;
    int (*finding_)(std::uint64_t, char*, std::size_t) = nullptr;
    void (*clear_findings_)() = nullptr;
    void (*fail_nth_)(const char*, std::uint64_t, int) = nullptr;
    void (*break_)(int) = nullptr;
    void (*hold_)(void*) = nullptr;
    void (*release_)(void*) = nullptr;
    void* (*stream_)(std::size_t) = nullptr;
    int (*priority_)(void*) = nullptr;
    void* (*make_)(int) = nullptr;
    int (*kernel_read_)(void*, std::uint64_t, std::size_t, std::uint64_t*) = nullptr;
    void (*sync_)(void*) = nullptr;
    std::uint64_t (*checksum_)(const void*, std::size_t) = nullptr;
    void (*begin_)(void*, int) = nullptr;
    int (*end_)(void*) = nullptr;
};
