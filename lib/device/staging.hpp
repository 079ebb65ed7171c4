// The ring of buffers between readers and a device whose memory cannot be read into.
#pragma once

#include <safemap/device.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// A ring of buffers of one size, allocated when first needed. Each buffer is fenced by the event of the last copy out
/// of it, so no thread gets a buffer that the device may still read. All members may be called from several threads at
/// once.
class StagingRing {
public:
    StagingRing(std::shared_ptr<Device> device, std::uint64_t buffer_bytes, std::size_t count);
    /// Waits for the copies in progress.
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
    /// Returns the bytes of all buffers. Buffers are kept until the ring is destroyed.
    std::uint64_t allocated() const;

    /// A buffer on loan, from take() until the loan goes out of scope.
    class Loan {
    public:
        Loan(Loan&& other) noexcept;
        Loan& operator=(Loan&&) = delete;
        ~Loan();

        const std::shared_ptr<StagingBuffer>& buffer() const noexcept { return slot_.buffer; }
        /// Keeps the buffer in use until `copy` is done.
        void fence(std::shared_ptr<DeviceEvent> copy) noexcept { slot_.copy = std::move(copy); }

    private:
        friend class StagingRing;
        struct Slot {
            std::shared_ptr<StagingBuffer> buffer;
            std::shared_ptr<DeviceEvent> copy;
        };
        Loan(StagingRing& ring, Slot slot) noexcept;

        StagingRing* ring_;
        Slot slot_;
    };

    /// Takes a buffer. Waits until there is one and the device is done with it. Throws out_of_memory if no buffer can
    /// be allocated.
    Loan take();

    /// Takes a buffer, lets `fill` read into it and queue copies out of it, and keeps the buffer in use until they are
    /// done, even if `fill` throws. `fill` sets `queue` before it queues a copy. Throws what `fill` throws,
    /// out_of_memory and device_failed.
    void lend(const std::function<void(const std::shared_ptr<StagingBuffer>& buffer, DeviceQueue*& queue)>& fill);

private:
    using Slot = Loan::Slot;
    Slot take_slot();
    void give_back(Slot slot) noexcept;

    const std::shared_ptr<Device> device_;
    const std::uint64_t buffer_bytes_;
    mutable std::mutex mutex_;
    std::condition_variable given_back_;
    std::vector<Slot> free_;  // longest free first: its copy is the most likely to be done
    std::size_t count_;
    std::size_t allocated_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::device
