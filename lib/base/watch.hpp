// Reports the progress of a bulk operation to its caller, and checks for cancellation.
#pragma once

#include <safemap/error.hpp>
#include <safemap/progress.hpp>

#include <algorithm>
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
    /// Begins with bytes that were done before, which have no part in the rate.
    void begin_at(std::uint64_t bytes) noexcept {
        before_ = bytes;
        set(bytes);
    }
    /// Sets the bytes that are done, for who counts them himself.
    void set(std::uint64_t bytes) noexcept { done_.store(bytes, std::memory_order_relaxed); }
    /// Returns true if the last report is at least 100 ms ago.
    bool is_due() const noexcept { return Clock::now() - last_ >= interval; }
    /// Reports progress then. May be called often.
    void tick() {
        check_stop();
        if (is_due()) tell();
    }
    /// Reports progress now.
    void tell() {
        check_stop();
        last_ = Clock::now();
        if (!monitor_.on_progress) return;
        Progress progress{.stage = stage_, .bytes_done = done_.load(std::memory_order_relaxed), .bytes_total = total_};
        const double seconds = std::chrono::duration<double>(last_ - began_).count();
        const std::uint64_t since = progress.bytes_done - std::min(progress.bytes_done, before_);
        if (seconds > 0) progress.bytes_per_second = static_cast<double>(since) / seconds;
        if (!monitor_.on_progress(progress)) throw Error(Errc::cancelled, "cancelled on request");
    }

    static constexpr std::chrono::milliseconds interval{100};

private:
    using Clock = std::chrono::steady_clock;

    const Monitor& monitor_;
    std::string_view stage_;
    std::uint64_t total_;
    std::uint64_t before_ = 0;
    std::atomic<std::uint64_t> done_ = 0;
    const Clock::time_point began_ = Clock::now();
    Clock::time_point last_ = began_;
};

}  // namespace safemap::SAFEMAP_ABI
