// Adds up the time that callers wait.
#pragma once

#include <safemap/api.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace safemap::SAFEMAP_ABI::device {

/// Adds the time until it goes out of scope to a counter.
class Stopwatch {
public:
    explicit Stopwatch(std::atomic<std::int64_t>& nanoseconds) noexcept : sum_(nanoseconds) {}
    ~Stopwatch() { sum_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began_).count(); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

private:
    std::atomic<std::int64_t>& sum_;
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace safemap::SAFEMAP_ABI::device
