// The ring of buffers between readers and a device that cannot be read into.
#pragma once

#include <safemap/device.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// Waits for a copy, also for one that fails: its buffer is free then, too. Whoever waits for the data asks the event
/// itself.
void wait_until_done(const DeviceEvent& copy) noexcept;

/// Fixed buffers, allocated when first needed, each fenced by the event of the last copy out of it: nobody gets a
/// buffer that the device may still read. All members may be called from several threads at once.
class StagingRing {
public:
    StagingRing(std::shared_ptr<Device> device, std::uint64_t buffer_bytes, std::size_t count);
    /// Waits for the copies that are under way.
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
    /// Bytes of all buffers; they are kept until the end.
    std::uint64_t allocated() const;

    /// One buffer, from when it was taken until it goes out of scope.
    class Loan {
    public:
        Loan(Loan&& other) noexcept;
        Loan& operator=(Loan&&) = delete;
        ~Loan();

        const std::shared_ptr<StagingBuffer>& buffer() const noexcept { return slot_.buffer; }
        /// The buffer is free again when `copy` is done.
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

    /// Waits until a buffer is there and the device is done with it. Throws out_of_memory where there is none.
    Loan take();

private:
    using Slot = Loan::Slot;
    Slot take_slot();
    void give_back(Slot slot) noexcept;

    const std::shared_ptr<Device> device_;
    const std::uint64_t buffer_bytes_;
    mutable std::mutex mutex_;
    std::condition_variable given_back_;
    std::vector<Slot> free_;  // the longest free first: its copy is the likeliest to be done
    std::size_t count_;
    std::size_t allocated_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::device
