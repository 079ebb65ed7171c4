// Helpers that the queues and events of several kinds of devices share: checks of arguments, and waiting by asking.
#pragma once

#include <safemap/bytes.hpp>
#include <safemap/device.hpp>

#include <chrono>
#include <cstdint>
#include <functional>

namespace safemap::SAFEMAP_ABI::device {

/// Throws invalid_argument if a copy of the bytes `part` of `from` to `to` at `offset` reaches outside one of them.
void check_copy(const DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part);
/// Throws invalid_argument if there are no rows, if rows overlap, or if they reach outside `to` or `from`.
void check_rows(const DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows);
/// Throws invalid_argument if `part` reaches outside device memory.
void check_read(const DeviceMemory& from, Extent part);

/// Asks `done` until it returns true or the deadline has passed, with pauses of 50 µs to 1 ms. Returns the last answer.
bool poll_until(std::chrono::steady_clock::time_point deadline, const std::function<bool()>& done);

}  // namespace safemap::SAFEMAP_ABI::device
