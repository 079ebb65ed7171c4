// How a bulk operation tells its caller how far it is, and hears from it that it should stop.
#pragma once

#include <safemap/error.hpp>
#include <safemap/progress.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Keeps the promises of Monitor, which outlives it. add() and check_stop() are for any thread, the others for the
/// caller's alone. Throws cancelled.
class Watch {
public:
    Watch(const Monitor& monitor, std::string_view stage, std::uint64_t total)
        : monitor_(monitor), stage_(stage), total_(total) {}

    void add(std::uint64_t bytes) noexcept { done_.fetch_add(bytes, std::memory_order_relaxed); }
    void check_stop() const {
        if (monitor_.stop.stop_requested()) throw Error(Errc::cancelled, "cancelled on request");
    }
    /// As often as one likes.
    void tick() {
        check_stop();
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ >= interval) tell(now);
    }
    /// Whenever the last time was.
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
