// Filling: tensors on their way to a range of device memory.
#pragma once

#include "device/fences.hpp"
#include "device/fill_plan.hpp"
#include "device/host_tier.hpp"
#include "device/layout.hpp"
#include "device/paths.hpp"
#include "device/staging.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

namespace safemap::SAFEMAP_ABI::device {

/// Reads the jobs of a plan to their places in device memory: straight, if the host can write to it or it is mapped, or
/// through slabs and the queues of the device.
/// Copies happen after the fences of the memory. Jobs may be done by several threads at once; set everything else
/// before the first, and ask for it after the last.
class Filling {
public:
    Filling(Device& device, StagingRing& staging, Paths& paths) noexcept
        : device_(device), staging_(staging), paths_(paths) {}

    /// Sets the memory to fill from `offset` on, bytes. What the host can write to must have no fence in progress.
    void set(Space space, std::uint64_t offset) noexcept {
        space_ = std::move(space);
        offset_ = offset;
    }
    const std::shared_ptr<DeviceMemory>& memory() const noexcept { return space_.memory; }
    /// Sets page-locked memory for a picture of the layout. Jobs read into it, and the device copies out of it.
    void set_picture(std::shared_ptr<StagingBuffer> picture) noexcept { picture_ = std::move(picture); }
    /// Maps memory, if possible, that is set next, has the layout and nothing else, and has no fence in progress.
    /// record() unmaps it. Throws device_failed.
    void map(DeviceMemory& memory);

    /// Reads job `i`, and queues its copies in the lane of `taker`, who takes a slab for them. They may still be in
    /// progress when this returns. Uses `worker` only after `taker` has got the slab. Throws what reading throws, and
    /// device_failed.
    void fill(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
              const StagingRing::Taker& taker);

    /// Queues copies of these parts of the picture: of what no job copies, or of all if no job is done.
    void copy_picture(std::span<const Extent> parts, Device::Lane lane);

    /// Returns true if copies were queued, or the memory was mapped: then record() has to be called.
    bool has_copies() const noexcept { return is_mapped_ || entered_[0] || entered_[1]; }
    using Hook = std::function<void(NativeStream stream, const Space& space, std::uint64_t offset)>;
    /// Unmaps the memory, in `lane`. Calls `arrived`, if there is one, for the work that belongs to the copies. Fences
    /// all that, and the copies so far. After that, the fences are among those of end(), also if it throws: what
    /// `arrived` throws, or device_failed.
    void record(Device::Lane lane, const Hook& arrived = {});
    /// Returns the last copies out of the picture.
    const LaneEvents& copies_of_picture() const noexcept { return picture_copies_; }
    /// Lets go of the memory, with all its fences: of record(), and those of before if they are not among these.
    Space end() noexcept;

private:
    void fill_staged(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
                     const StagingRing::Taker& taker);
    void fill_picture(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker, Device::Lane lane);
    DeviceQueue& enter(Device::Lane lane);
    void end_lane(Device::Lane lane, const Hook& arrived);

    Device& device_;
    StagingRing& staging_;
    Paths& paths_;
    Space space_;
    std::uint64_t offset_ = 0;
    std::span<std::byte> mapped_ = {};
    bool is_mapped_ = false;  // or was
    std::mutex entering_;
    std::array<bool, 2> entered_ = {};  // by lane: it waits for the fences, and has copies
    Fences recorded_;
    std::shared_ptr<StagingBuffer> picture_ = {};
    LaneEvents picture_copies_ = {};
};

}  // namespace safemap::SAFEMAP_ABI::device
