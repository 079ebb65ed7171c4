// Writes tensors into memory of the caller.
#pragma once

#include "device/fill_plan.hpp"
#include "device/group.hpp"
#include "device/layout.hpp"
#include "device/paths.hpp"
#include "device/readers.hpp"
#include "device/staging.hpp"

#include <safemap/uploader.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// The task that fills memory of the caller. Its tensors are laid out as those of a bundle are, so neighbours in a file
/// are read together: straight to their targets, or to slabs, in which that layout exists. From a slab, each tensor is
/// copied to its own target. Copies are in the bulk queue.
class FillTask final : public Task {
public:
    /// Throws invalid_argument if a target has no memory, or ends outside it.
    static std::shared_ptr<FillTask> make(Device& device, StagingRing& staging, Paths& paths, Readers& readers,
                                          std::span<const FillTarget> targets, const FillSizes& sizes);

    /// Chooses how jobs are done; call before the first one. Tensors are read straight to their targets if the host can
    /// write to all of them, and nothing that is queued may still use them: `before`, if any, is done, and the bulk
    /// queue has nothing left to do. Throws device_failed.
    void choose_way(const DeviceEvent* before);
    bool run(std::size_t job, Worker& worker) noexcept override;
    void finish() noexcept override;

    /// Calls visit(tensor, memory) for each target.
    template <class Visit> void for_each(Visit&& visit) const {
        for (std::size_t i = 0; i < places_.size(); ++i) visit(layout_.tensors[i], *places_[i].memory);
    }

    /// Blocks until the task is finished. Throws the first fault, when no copy is in progress any more.
    void wait();

private:
    struct Place {
        std::shared_ptr<DeviceMemory> memory;
        std::uint64_t offset;  // bytes
    };
    FillTask(Device& device, StagingRing& staging, Paths& paths, Readers& readers, Layout layout, FillPlan plan,
             std::vector<Place> places);
    void fill_in_place(std::size_t job, Worker& worker);
    void fill_staged(std::size_t job, Worker& worker);
    std::size_t tensor_at(std::uint64_t place) const noexcept;
    void copy(const StagingBuffer& slab, std::uint64_t to, Extent from) const;
    void copy_rows(const StagingBuffer& slab, RowCopy rows) const;

    DeviceQueue& queue_;
    StagingRing& staging_;
    Paths& paths_;
    Readers& readers_;
    // Until the task is finished.
    Layout layout_;
    FillPlan plan_;
    std::vector<Place> places_;  // parallel to the tensors of the layout
    bool in_place_ = false;

    std::mutex mutex_;
    std::condition_variable finished_;
    bool is_finished_ = false;
    std::exception_ptr fault_;
};

}  // namespace safemap::SAFEMAP_ABI::device
