// Reads RssAnon of /proc/self/status every 10 ms on a thread, and keeps the largest.
#include "memory.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace safemap::cli {

std::uint64_t anonymous_bytes() {
    const int status = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (status < 0) return 0;
    std::array<char, 4096> buffer;  // on the stack: measuring must not grow the heap
    const ssize_t size = ::read(status, buffer.data(), buffer.size());
    ::close(status);
    if (size <= 0) return 0;

    constexpr std::string_view label = "RssAnon:";
    const std::string_view text(buffer.data(), static_cast<std::size_t>(size));
    const auto line = text.find(label);
    if (line == std::string_view::npos) return 0;
    const auto number = text.find_first_not_of(" \t", line + label.size());
    if (number == std::string_view::npos) return 0;
    std::uint64_t kibibytes = 0;
    std::from_chars(text.data() + number, text.data() + text.size(), kibibytes);
    return kibibytes * 1024;
}

MemoryPeak::MemoryPeak() {
    try {
        thread_ = std::thread([this] { watch(); });
    } catch (const std::system_error&) {  // there is no thread to spare, and bytes() still looks
    }
}

MemoryPeak::~MemoryPeak() {
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
}

std::uint64_t MemoryPeak::bytes() {
    look();
    return peak_;
}

void MemoryPeak::watch() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(10), [this] { return over_; })) look();
}

void MemoryPeak::look() {
    const std::uint64_t now = anonymous_bytes();
    std::uint64_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
    }
}

}  // namespace safemap::cli
