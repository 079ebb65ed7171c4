// Writes tensors into memory of the caller.
#include "device/fill.hpp"

#include "base/text.hpp"
#include "device/cache.hpp"
#include "lazy/page_cache.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// Returns the memory of a target. Throws invalid_argument if the value does not fit in it.
std::shared_ptr<DeviceMemory> memory_of(Device& device, const FillTarget& target) {
    const Extent part{target.offset, target.tensor.nbytes()};
    if (!part.inside(target.size))
        throw Error(Errc::invalid_argument, bytes_text(part.size) + " at " + std::to_string(part.offset) +
                                                " end outside the target of " + bytes_text(target.size))
            .with_tensor(target.tensor.name());
    if (target.size == 0) return device.allocate(0);
    try {
        return device.borrow(target.address, target.size);
    } catch (Error& error) {
        throw error.with_tensor(target.tensor.name());
    }
}

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

std::shared_ptr<FillTask> FillTask::make(Device& device, StagingRing& staging, Paths& paths, Readers& readers,
                                         std::span<const FillTarget> targets, const FillSizes& sizes) {
    std::vector<LazyTensor> tensors;
    std::vector<std::shared_ptr<DeviceMemory>> memory;
    tensors.reserve(targets.size());
    memory.reserve(targets.size());
    for (const FillTarget& target : targets) {
        memory.push_back(memory_of(device, target));
        tensors.push_back(target.tensor);
    }
    std::vector<std::uint32_t> from;
    Layout layout = lay_out(std::move(tensors), from);
    std::vector<Place> places;
    places.reserve(from.size());
    for (const std::uint32_t i : from) places.push_back({memory[i], targets[i].offset});
    FillPlan plan(layout, sizes.job, sizes.tile);
    return std::shared_ptr<FillTask>(
        new FillTask(device, staging, paths, readers, std::move(layout), std::move(plan), std::move(places)));
}

FillTask::FillTask(Device& device, StagingRing& staging, Paths& paths, Readers& readers, Layout layout, FillPlan plan,
                   std::vector<Place> places)
    : Task(plan.jobs()),
      queue_(device.queue(Device::Lane::bulk)),
      staging_(staging),
      paths_(paths),
      readers_(readers),
      layout_(std::move(layout)),
      plan_(std::move(plan)),
      places_(std::move(places)) {}

void FillTask::choose_way(const DeviceEvent* before) {
    const auto can_write_to = [](const Place& place) {
        return place.memory->size() == 0 || !place.memory->host_bytes().empty();
    };
    in_place_ =
        std::ranges::all_of(places_, can_write_to) && (before == nullptr || before->done()) && queue_.record()->done();
}

bool FillTask::run(std::size_t job, Worker& worker) noexcept {
    std::exception_ptr fault = fault_of(layout_, [&] {
        if (in_place_) fill_in_place(job, worker);
        else fill_staged(job, worker);
    });
    if (!fault) return true;
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_ = std::move(fault);
    return false;
}

void FillTask::fill_in_place(std::size_t job, Worker& worker) {
    plan_.fill(layout_, job, paths_, worker, [this](std::size_t tensor, std::uint64_t at) {
        const Place& place = places_[tensor];
        return place.memory->host_bytes().data() + place.offset + at;
    });
}

void FillTask::fill_staged(std::size_t job, Worker& worker) {
    const StagingRing::Taker taker{[] { return Device::Lane::bulk; }, [&] { return readers_.help_demand(worker); }};
    staging_.lend(taker, [&](const StagingRing::Loan& loan, DeviceQueue*& queue) {
        const StagingBuffer& slab = *loan.buffer();
        const FillPlan::Copies put{[&](std::uint64_t to, Extent from) {
                                       queue = &queue_;
                                       copy(slab, to, from);
                                   },
                                   [&](const RowCopy& rows) {
                                       queue = &queue_;
                                       copy_rows(slab, rows);
                                   }};
        plan_.fill(layout_, job, paths_, worker, slab.bytes(), put);
    });
}

void FillTask::finish() noexcept {
    std::exception_ptr fault = fault_of(layout_, [&] { require_unchanged(layout_.tensors); });
    // Now, because a queue of the readers may have the task for longer: the caller's memory and sources can go.
    plan_ = {};
    places_.clear();
    layout_ = {};
    const std::lock_guard lock(mutex_);
    if (fault && !fault_) fault_ = std::move(fault);
    is_finished_ = true;
    finished_.notify_all();
}

void FillTask::wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return is_finished_; });
    if (!fault_) return;
    queue_.drain();
    // Moved: a reader that lets go of the task later must not destroy an exception that this thread has read. The count
    // of its owners is hidden from ThreadSanitizer.
    std::rethrow_exception(std::exchange(fault_, nullptr));
}

/// Returns the number of the tensor that a place of the layout belongs to.
std::size_t FillTask::tensor_at(std::uint64_t place) const noexcept {
    const auto after = std::ranges::upper_bound(layout_.places, place);
    return static_cast<std::size_t>(after - layout_.places.begin()) - 1;
}

/// Copies all tensors of a picture to their targets.
void FillTask::copy(const StagingBuffer& slab, std::uint64_t to, Extent from) const {
    const std::uint64_t end = to + from.size;
    for (std::size_t i = tensor_at(to); i < places_.size() && layout_.places[i] < end; ++i) {
        const Extent own = layout_.extent(i);
        const std::uint64_t begin = std::max(own.offset, to);
        const std::uint64_t stop = std::min(own.end(), end);
        if (begin >= stop) continue;
        queue_.copy(*places_[i].memory, places_[i].offset + (begin - own.offset), slab,
                    {from.offset + (begin - to), stop - begin});
    }
}

void FillTask::copy_rows(const StagingBuffer& slab, RowCopy rows) const {
    const std::size_t i = tensor_at(rows.to);
    rows.to = rows.to - layout_.places[i] + places_[i].offset;
    queue_.copy_rows(*places_[i].memory, slab, rows);
}

std::shared_ptr<DeviceEvent> Cache::fill(View& view, std::span<const FillTarget> targets, NativeStream after) {
    start(view);
    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    if (after && !orderable(after))
        throw Error(Errc::invalid_argument, "memory cannot be filled after a stream that is being captured");
    const auto task = FillTask::make(*device_, staging_, view.paths, *readers_, targets, view.sizes);
    require_foreign(view, *task);
    DeviceQueue& queue = device_->queue(Device::Lane::bulk);
    try {
        std::shared_ptr<DeviceEvent> before;
        if (after) {
            before = device_->record(after);
            if (!before->done()) queue.wait_for(*before);
        }
        task->choose_way(before.get());
        if (task->jobs() > 0) {
            auto worker = readers_->borrow_worker();
            // Before prefetches. Not as a demand, because its copies may have to wait for work of the caller.
            readers_->submit(task, Readers::Lane::bulk, std::numeric_limits<std::int64_t>::max());
            while (readers_->help(*task, *worker)) {
            }
            task->wait();
            readers_->give_back(std::move(worker));
        }
        return record_or_drain(queue);
    } catch (const Error& error) {
        note_failure(std::make_exception_ptr(error));  // a copy, because the caller may add to this one
        throw;
    }
}

/// Throws invalid_argument if a task fills memory that the cache lends, whichever uploader has it, or addresses that
/// this one keeps.
void Cache::require_foreign(const View& view, const FillTask& task) const {
    std::vector<Range> own;
    {
        const Lock lock(mutex_);
        for (const auto& holding : ledger_.holdings())
            if (holding->memory) own.emplace_back(*holding->memory);
        for (const auto& [group, place] : view.account.places) own.emplace_back(*place.range->memory);
    }
    std::ranges::sort(own, {}, &Range::begin);
    task.for_each([&](const LazyTensor& tensor, const DeviceMemory& memory) {
        const Range range(memory);
        const auto after = std::ranges::lower_bound(own, range.end, {}, &Range::begin);
        if (after != own.begin() && std::prev(after)->end > range.begin)
            throw Error(Errc::invalid_argument, "the target is memory of a lease").with_tensor(tensor.name());
    });
}

}  // namespace safemap::SAFEMAP_ABI::device
