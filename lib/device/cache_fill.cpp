// Fills memory of the caller, with the readers and the slabs of the cache.
#include "device/cache.hpp"
#include "device/fill.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// The addresses that memory takes; of a handle of another kind, the handle alone.
struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;

    explicit Range(const DeviceMemory& memory) noexcept
        : begin(reinterpret_cast<std::uintptr_t>(memory.handle())),
          end(begin + (memory.has_address() ? memory.size() : 1)) {}
};

/// Returns the position after all copies. If that fails, waits for the copies.
std::shared_ptr<DeviceEvent> record_or_drain(DeviceQueue& queue) {
    try {
        return queue.record();
    } catch (...) {
        queue.drain();
        throw;
    }
}

}  // namespace

std::shared_ptr<DeviceEvent> Cache::fill(std::span<const FillTarget> targets, NativeStream after) {
    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    if (after && !orderable(after))
        throw Error(Errc::invalid_argument, "memory cannot be filled after a stream that is being captured");
    const auto task = FillTask::make(*device_, staging_, paths_, readers_, targets, sizes_);
    require_foreign(targets);
    DeviceQueue& queue = device_->queue(Device::Lane::bulk);
    try {
        std::shared_ptr<DeviceEvent> before;
        if (after) {
            before = device_->record(after);
            if (!before->done()) queue.wait_for(*before);
        }
        task->choose_way(before.get());
        if (task->jobs() > 0) {
            auto worker = readers_.borrow_worker();
            // Before prefetches. Not as a demand, because its copies may have to wait for work of the caller.
            readers_.submit(task, Readers::Lane::bulk, std::numeric_limits<int>::max());
            while (readers_.help(*task, *worker)) {
            }
            task->wait();
            readers_.give_back(std::move(worker));
        }
        return record_or_drain(queue);
    } catch (const Error&) {
        note_failure(std::current_exception());
        throw;
    }
}

/// Throws invalid_argument if a target is memory that the cache lends.
void Cache::require_foreign(std::span<const FillTarget> targets) const {
    std::vector<Range> own;
    {
        const Lock lock(mutex_);
        for (const auto& holding : residency_.holdings())
            if (holding->memory) own.emplace_back(*holding->memory);
    }
    std::ranges::sort(own, {}, &Range::begin);
    for (const FillTarget& target : targets) {
        const Range range(*target.memory);
        const auto after = std::ranges::lower_bound(own, range.end, {}, &Range::begin);
        if (after != own.begin() && std::prev(after)->end > range.begin)
            throw Error(Errc::invalid_argument, "the target is memory of a lease").with_tensor(target.tensor.name());
    }
}

}  // namespace safemap::SAFEMAP_ABI::device
