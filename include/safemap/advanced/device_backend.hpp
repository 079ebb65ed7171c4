// The parts of a device besides its memory, for programs that implement a Device or wait for a DeviceEvent: queues of
// copies, staging buffers, and positions in the work of a device.
#pragma once

#include <safemap/api.hpp>
#include <safemap/bytes.hpp>
#include <safemap/device.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Host memory that a device copies from at full speed; page-locked if the device supports that.
class SAFEMAP_API StagingBuffer {
public:
    virtual ~StagingBuffer() = default;
    virtual std::span<std::byte> bytes() const noexcept = 0;
};

/// A position in the work of a device: in a queue of copies, or in a stream of the caller.
class SAFEMAP_API DeviceEvent {
public:
    virtual ~DeviceEvent() = default;
    /// Returns true if all work before this position is done. Never blocks. Throws device_failed if the device failed.
    [[nodiscard]] virtual bool done() const = 0;
    /// Blocks until all work before this position is done, or until `deadline`. Returns done(). Throws device_failed if
    /// the device failed.
    [[nodiscard]] virtual bool wait_until(std::chrono::steady_clock::time_point deadline) const = 0;
    /// Blocks until all work before this position is done. Throws as wait_until().
    void wait() const { static_cast<void>(wait_until(std::chrono::steady_clock::time_point::max())); }
};

/// Rows of equal size, at equal distances in a staging buffer and at equal distances in device memory. All numbers but
/// `rows` are bytes. Rows do not overlap: each pitch is at least `row_bytes`.
struct RowCopy {
    std::uint64_t to = 0;          ///< offset of the first row in the device memory
    std::uint64_t to_pitch = 0;    ///< distance of the rows there
    std::uint64_t from = 0;        ///< offset of the first row in the staging buffer
    std::uint64_t from_pitch = 0;  ///< distance of the rows there
    std::uint64_t row_bytes = 0;
    std::uint64_t rows = 0;  ///< number of rows, at least 1
};

/// Copies from the host to a device, which happen in the order in which they were queued. All members but map(),
/// run() and drain() return at once. All but drain() throw device_failed if the device failed. Thread-safe.
class SAFEMAP_API DeviceQueue {
public:
    virtual ~DeviceQueue() = default;
    /// Queues a copy of the bytes `part` of `from` to `to` at `offset`. The caller keeps both, and does not change the
    /// staging buffer, until an event that was recorded later is done.
    virtual void copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) = 0;
    /// Queues one copy of all `rows`, with the same rules.
    virtual void copy_rows(DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) = 0;
    /// Returns the position after all copies that are queued so far, and after all events that the queue waits for.
    [[nodiscard]] virtual std::shared_ptr<DeviceEvent> record() = 0;
    /// Lets the copies that are queued from now on happen after `event`. The event need not be kept.
    virtual void wait_for(const DeviceEvent& event) = 0;
    /// Returns all bytes of memory that can_be_mapped(), for the host to write to. Blocks until they can be written.
    /// The memory loses its contents. The caller makes sure that no work which uses the memory is in progress, and
    /// queues none before unmap(). Returns an empty span if the device cannot map the memory at present, or the memory
    /// has no bytes. This implementation throws invalid_argument.
    [[nodiscard]] virtual std::span<std::byte> map(DeviceMemory& memory);
    /// Gives the bytes from map() back to the device. Work after the next record() sees what was written. Does nothing
    /// for an empty span. This implementation throws invalid_argument.
    virtual void unmap(DeviceMemory& memory, std::span<std::byte> mapped);
    /// Calls `work` with the stream of this queue. What it puts there happens after the copies that are queued so far,
    /// and before the next record(). The context of a CUDA device is current meanwhile. Throws what `work` throws. This
    /// implementation passes no stream, and waits for the copies first.
    virtual void run(const std::function<void(NativeStream)>& work);
    /// Blocks until no copy of this queue is in progress, whether they succeeded or not.
    virtual void drain() noexcept = 0;
};

}  // namespace safemap::SAFEMAP_ABI
