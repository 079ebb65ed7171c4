// Measures the peak of the anonymous memory of this process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace safemap::cli {

/// Returns the current RssAnon of this process in bytes: heap, stacks and private memory, without mapped files.
/// Returns 0 if /proc does not have it.
std::uint64_t anonymous_bytes();

/// Samples anonymous_bytes() every 10 ms on its own thread, which the destructor joins. If no thread can be started, it
/// samples in bytes() only.
class MemoryPeak {
public:
    MemoryPeak();
    ~MemoryPeak();
    MemoryPeak(const MemoryPeak&) = delete;
    MemoryPeak& operator=(const MemoryPeak&) = delete;

    /// Returns the largest sample so far, including one taken now.
    std::uint64_t bytes();

private:
    void watch();
    void look();

    std::atomic<std::uint64_t> peak_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    bool over_ = false;
    std::thread thread_;
};

}  // namespace safemap::cli
