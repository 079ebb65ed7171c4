// How much memory of its own this process takes at most.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace safemap::cli {

/// RssAnon of this process now: heap, stacks and private memory, without mapped files. 0 where /proc does not say.
std::uint64_t anonymous_bytes();

/// Looks every 10 ms, on a thread of its own that is joined when this is destroyed.
class MemoryPeak {
public:
    MemoryPeak();
    ~MemoryPeak();
    MemoryPeak(const MemoryPeak&) = delete;
    MemoryPeak& operator=(const MemoryPeak&) = delete;

    /// The most that was seen so far, now included.
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
