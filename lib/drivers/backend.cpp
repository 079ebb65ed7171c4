// Checks the arguments of copies, remembers the first failure of a device, and polls until a deadline.
#include "drivers/backend.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

void check_range(Extent part, std::uint64_t size, const char* what) {
    if (part.inside(size)) return;
    throw Error(Errc::invalid_argument, "a copy of " + bytes_text(part.size) + " at " + std::to_string(part.offset) +
                                            " reaches outside " + what + " of " + bytes_text(size));
}

/// Returns the size of all rows with the space between them, or nothing if it does not fit in 64 bits.
std::optional<std::uint64_t> span_of_rows(std::uint64_t pitch, const RowCopy& rows) {
    const auto before_last = checked_mul(pitch, rows.rows - 1);
    return before_last ? checked_add(*before_last, rows.row_bytes) : std::nullopt;
}

}  // namespace

void check_copy(const DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) {
    check_range(part, from.bytes().size(), "a staging buffer");
    check_range({offset, part.size}, to.size(), "device memory");
}

void check_rows(const DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) {
    if (rows.rows == 0 || rows.to_pitch < rows.row_bytes || rows.from_pitch < rows.row_bytes)
        throw Error(Errc::invalid_argument, "a copy of no rows, or of rows that overlap");
    const auto to_size = span_of_rows(rows.to_pitch, rows);
    const auto from_size = span_of_rows(rows.from_pitch, rows);
    if (!to_size || !from_size)
        throw Error(Errc::invalid_argument, "a copy of rows whose size does not fit in 64 bits");
    check_range({rows.from, *from_size}, from.bytes().size(), "a staging buffer");
    check_range({rows.to, *to_size}, to.size(), "device memory");
}

void check_read(const DeviceMemory& from, Extent part) { check_range(part, from.size(), "device memory"); }

DeviceHealth::DeviceHealth(std::string name) : name_(std::move(name)) {}

bool DeviceHealth::is_child() const noexcept { return count_forks() != forks_; }

bool DeviceHealth::is_lost() const noexcept { return failed_.load(std::memory_order_acquire) || is_child(); }

void DeviceHealth::require_working() const {
    if (is_child())
        throw Error(Errc::device_failed,
                    "the device " + safemap::quoted(name_) + " was opened by another process, before a fork")
            .with_hint("Open the device in the process that uses it.");
    if (!failed_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    throw Error(Errc::device_failed,
                "the device " + safemap::quoted(name_) + " failed: " + failed_call_ + ": " + words_of(failure_));
}

void DeviceHealth::note_failure(int result, const char* call) noexcept {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = result;
    failed_call_ = call;
    failed_.store(true, std::memory_order_release);
}

void DeviceHealth::throw_refused(int result, const char* call) const {
    throw Error(Errc::invalid_argument,
                "the device " + safemap::quoted(name_) + " refused a call: " + call + ": " + words_of(result))
        .with_hint("memory that was borrowed has to be memory of this device, of the size that was said");
}

std::optional<unsigned> parse_ordinal(std::string_view text) {
    unsigned number = 0;
    if (text.empty()) return number;
    const char* const end = text.data() + text.size();
    const auto [stop, fault] = std::from_chars(text.data(), end, number);
    if (fault != std::errc{} || stop != end) return std::nullopt;
    return number;
}

bool poll_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::microseconds shortest(50);
    constexpr std::chrono::microseconds longest(1000);
    for (auto pause = shortest;; pause = std::min(2 * pause, longest)) {
        if (done()) return true;
        const auto now = Clock::now();
        if (now >= deadline) return false;
        std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
    }
}

}  // namespace safemap::SAFEMAP_ABI::drivers
