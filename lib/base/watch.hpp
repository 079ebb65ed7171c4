// Reports the progress of a bulk operation to its caller, and checks for cancellation.
#pragma once

#include <safemap/error.hpp>
#include <safemap/progress.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// The progress of one operation, reported as Monitor promises. `monitor` must outlive it. Any thread may call add()
/// and check_stop(); only the caller's thread may call the others. Throws cancelled.
class Watch {
public:
    Watch(const Monitor& monitor, std::string_view stage, std::uint64_t total)
        : monitor_(monitor), stage_(stage), total_(total) {}
    Watch(Monitor&&, std::string_view, std::uint64_t) = delete;  // it would be gone

    void add(std::uint64_t bytes) noexcept { done_.fetch_add(bytes, std::memory_order_relaxed); }
    void check_stop() const {
        if (monitor_.stop.stop_requested()) throw Error(Errc::cancelled, "cancelled on request");
    }
    /// Reports progress if the last report is at least 100 ms ago. May be called often.
    void tick() {
        check_stop();
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ >= interval) tell(now);
    }
    /// Reports progress now.
    void tell() {
        check_stop();
        tell(std::chrono::steady_clock::now());
    }

private:
    static constexpr std::chrono::milliseconds interval{100};

    void tell(std::chrono::steady_clock::time_point now) {
        last_ = now;
        if (!monitor_.on_progress) return;
        const Progress progress{
            .stage = stage_, .bytes_done = done_.load(std::memory_order_relaxed), .bytes_total = total_};
        if (!monitor_.on_progress(progress)) throw Error(Errc::cancelled, "cancelled on request");
    }

    const Monitor& monitor_;
    std::string_view stage_;
    std::uint64_t total_;
    std::atomic<std::uint64_t> done_ = 0;
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace safemap::SAFEMAP_ABI
