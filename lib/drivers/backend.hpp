// Pieces that several kinds of devices share: checks of arguments, whether a device still works, and waiting by asking.
#pragma once

#include "base/forks.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/bytes.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::drivers {

/// Throws invalid_argument if a copy of the bytes `part` of `from` to `to` at `offset` reaches outside one of them.
void check_copy(const DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part);
/// Throws invalid_argument if there are no rows, if rows overlap, or if they reach outside `to` or `from`.
void check_rows(const DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows);
/// Throws invalid_argument if `part` reaches outside device memory.
void check_read(const DeviceMemory& from, Extent part);

/// Returns the number in `text`, which is "1" for "cuda:1"; 0 if there is no text; nothing if `text` has anything else.
std::optional<unsigned> parse_ordinal(std::string_view text);

/// Says if a device still works. What belongs to a device has a reference to it. Thread-safe.
class DeviceHealth {
public:
    /// The name of the device, for errors.
    explicit DeviceHealth(std::string name);
    virtual ~DeviceHealth() = default;
    DeviceHealth(const DeviceHealth&) = delete;
    DeviceHealth& operator=(const DeviceHealth&) = delete;

    const std::string& name() const noexcept { return name_; }
    /// Returns true if this is a child of the process that opened the device. The threads of a driver do not exist in a
    /// child.
    bool is_child() const noexcept;
    /// Returns true if no function of the driver may be called any more: the device failed, or is_child().
    bool is_lost() const noexcept;
    /// Throws device_failed if is_lost().
    void require_working() const;

protected:
    /// Notes that the device failed with an error of the driver. Only the first failure is kept. `call` is a literal.
    void note_failure(int result, const char* call) noexcept;
    /// Throws invalid_argument: the driver refused one call, and the device goes on.
    [[noreturn]] void throw_refused(int result, const char* call) const;
    /// Returns the words of the driver for one of its errors.
    virtual std::string words_of(int result) const = 0;

private:
    const std::string name_;
    const unsigned forks_ = count_forks();
    std::atomic<bool> failed_ = false;
    mutable std::mutex mutex_;  // guards the two below
    int failure_ = 0;
    const char* failed_call_ = "";
};

/// Asks `done` until it returns true or the deadline has passed, with pauses of 50 µs to 1 ms. Returns the last answer.
bool poll_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done);

}  // namespace safemap::SAFEMAP_ABI::drivers
