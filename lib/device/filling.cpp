// Filling: tensors on their way to a range of device memory.
#include "device/filling.hpp"

#include <exception>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

void Filling::fill(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
                   const StagingRing::Taker& taker) {
    const auto bytes = mapped_.empty() ? space_.memory->host_bytes() : mapped_;
    if (bytes.empty() && picture_) return fill_picture(layout, plan, i, worker, taker.lane());
    if (bytes.empty()) return fill_staged(layout, plan, i, worker, taker);
    std::byte* const begin = bytes.data() + offset_;
    plan.fill(layout, i, paths_, worker,
              [begin, &layout](std::size_t tensor, std::uint64_t at) { return begin + layout.places[tensor] + at; });
}

void Filling::fill_staged(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
                          const StagingRing::Taker& taker) {
    staging_.lend(taker, [&](const StagingRing::Loan& loan, DeviceQueue*& queue) {
        const StagingBuffer& slab = *loan.buffer();
        const auto entered = [&]() -> DeviceQueue& {
            if (queue == nullptr) queue = &enter(loan.lane());
            return *queue;
        };
        const FillPlan::Copies put{
            [&](std::uint64_t to, Extent from) { entered().copy(*space_.memory, offset_ + to, slab, from); },
            [&](RowCopy rows) {
                rows.to += offset_;
                entered().copy_rows(*space_.memory, slab, rows);
            }};
        plan.fill(layout, i, paths_, worker, slab.bytes(), put);
    });
}

void Filling::fill_picture(const Layout& layout, const FillPlan& plan, std::size_t i, Worker& worker,
                           Device::Lane lane) {
    const std::span<std::byte> all = picture_->bytes();
    const auto range = plan.range(i);
    if (!range)
        return plan.fill(layout, i, paths_, worker,
                         [&](std::size_t tensor, std::uint64_t at) { return all.data() + layout.places[tensor] + at; });
    const auto put = [&](std::uint64_t to, Extent) { copy_picture({{{to, range->size}}}, lane); };
    plan.fill(layout, i, paths_, worker, all.subspan(range->offset, range->size), {.range = put, .rows = {}});
}

void Filling::copy_picture(std::span<const Extent> parts, Device::Lane lane) {
    for (const Extent& part : parts) enter(lane).copy(*space_.memory, offset_ + part.offset, *picture_, part);
}

void Filling::map(DeviceMemory& memory) {
    mapped_ = device_.queue(Device::Lane::bulk).map(memory);
    is_mapped_ = !mapped_.empty();
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

void Filling::record(Device::Lane last, const Hook& arrived) {
    if (!has_copies()) {
        if (arrived) arrived({}, space_, offset_);
        return;
    }
    const Device::Lane other = last == Device::Lane::demand ? Device::Lane::bulk : Device::Lane::demand;
    std::exception_ptr fault;
    for (const Device::Lane lane : {other, last}) {
        const bool is_last = lane == last && (arrived || !mapped_.empty());
        if (!entered_[static_cast<std::size_t>(lane)] && !is_last) continue;
        try {
            if (is_last) end_lane(lane, arrived);
        } catch (...) {
            fault = std::current_exception();
        }
        DeviceQueue& queue = device_.queue(lane);
        try {
            recorded_.push_back({queue.record()});
            if (picture_) picture_copies_[static_cast<std::size_t>(lane)] = recorded_.back().event;
        } catch (...) {
            queue.drain();
            fault = std::current_exception();
        }
    }
    if (fault) std::rethrow_exception(fault);
}

/// Puts into a lane what comes after all copies.
void Filling::end_lane(Device::Lane lane, const Hook& arrived) {
    DeviceQueue& queue = enter(lane);
    if (!mapped_.empty()) queue.unmap(*space_.memory, std::exchange(mapped_, {}));
    if (!arrived) return;
    for (const Fence& fence : recorded_) queue.wait_for(*fence.event);  // copies of the other lane
    queue.run([&](NativeStream stream) { arrived(stream, space_, offset_); });
}

Space Filling::end() noexcept {
    Space space = std::move(space_);
    picture_.reset();  // a task may stay in a queue without readers
    if (recorded_.empty()) return space;
    space.fences = std::move(recorded_);  // they are done after those of before
    return space;
}

}  // namespace safemap::SAFEMAP_ABI::device
