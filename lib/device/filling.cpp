// Filling: tensors on their way to a range of device memory.
#include "device/filling.hpp"

#include <exception>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

std::uint64_t Filling::fill(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
                            Device::Lane lane) {
    const auto bytes = space_.memory->host_bytes();
    if (bytes.empty()) return fill_staged(layout, plan, i, worker, lane);
    return plan.fill(layout, i, worker, bytes.subspan(offset_, layout.size));
}

std::uint64_t Filling::fill_staged(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
                                   Device::Lane lane) {
    StagingRing::Loan loan = staging_.take();
    DeviceQueue* queue = nullptr;  // set when copies are queued
    const auto entered = [&]() -> DeviceQueue& {
        if (queue == nullptr) queue = &enter(lane);
        return *queue;
    };
    const FillPlan::Copies put{
        [&](std::uint64_t to, Extent from) { entered().copy(*space_.memory, offset_ + to, *loan.buffer(), from); },
        [&](RowCopy rows) {
            rows.to += offset_;
            entered().copy_rows(*space_.memory, *loan.buffer(), rows);
        }};
    std::uint64_t read = 0;
    std::exception_ptr fault;
    try {
        read = plan.fill(layout, i, worker, loan.buffer()->bytes(), put);
    } catch (...) {
        fault = std::current_exception();
    }
    // Whatever happened, the slab is in use until its copies are done.
    try {
        if (queue != nullptr) loan.fence(queue->record());
    } catch (...) {
        queue->drain();
        if (!fault) fault = std::current_exception();
    }
    if (fault) std::rethrow_exception(fault);
    return read;
}

/// Returns the queue of a lane, whose next copies happen after the fences of the memory.
DeviceQueue& Filling::enter(Device::Lane lane) {
    DeviceQueue& queue = device_.queue(lane);
    const std::lock_guard lock(entering_);
    bool& entered = entered_[static_cast<std::size_t>(lane)];
    if (!entered)
        for (const Fence& fence : space_.fences) queue.wait_for(*fence.event);
    entered = true;
    return queue;
}

void Filling::record() {
    std::exception_ptr fault;
    for (const auto lane : {Device::Lane::demand, Device::Lane::bulk}) {
        if (!entered_[static_cast<std::size_t>(lane)]) continue;
        DeviceQueue& queue = device_.queue(lane);
        try {
            recorded_.push_back({queue.record()});
        } catch (...) {
            queue.drain();
            fault = std::current_exception();
        }
    }
    if (fault) std::rethrow_exception(fault);
}

Space Filling::end() noexcept {
    Space space = std::move(space_);
    if (recorded_.empty()) return space;
    space.fences = std::move(recorded_);  // they are done after those of before
    return space;
}

}  // namespace safemap::SAFEMAP_ABI::device
