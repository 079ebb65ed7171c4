// Upload: a group on its way to a device.
#include "device/upload.hpp"

#include "device/cache.hpp"
#include "lazy/page_cache.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::device {

void throw_copy(const std::exception_ptr& fault) {
    try {
        std::rethrow_exception(fault);
    } catch (const Error& error) {
        throw Error(error);
    }
}

Upload::Upload(std::shared_ptr<Group> of)
    : Task(of->prepare(of->view->sizes).plan.jobs()),
      cache_(*of->view->cache),
      view(*of->view),
      group(std::move(of)),
      filling(*cache_.device_, cache_.staging_, view.paths),
      left(group->layout.size) {}

bool Upload::run(std::size_t job, Worker& worker) noexcept {
    const StagingRing::Taker taker{[&] { return demanded ? Device::Lane::demand : Device::Lane::bulk; },
                                   [&] { return cache_.readers_->help_demand(worker); }};
    std::exception_ptr failed =
        fault_of(group->layout, [&] { filling.fill(group->layout, group->on_device->plan, job, worker, taker); });
    if (!failed) {
        left.fetch_sub(group->on_device->plan.bytes(job), std::memory_order_relaxed);
        return true;
    }
    note(std::move(failed));
    return false;
}

/// Remembers the first fault.
void Upload::note(std::exception_ptr failed) noexcept {
    cache_.note_failure(failed);
    const std::lock_guard lock(cache_.mutex_);
    // Moved: no thread may destroy an exception that another one has read. The count of its owners is hidden from
    // ThreadSanitizer.
    if (!fault) fault = std::move(failed);
}

void Upload::copy_picture() noexcept {
    const Extent all{0, group->layout.size};
    std::exception_ptr failed = fault_of(group->layout, [&] {
        filling.copy_picture(std::span(&all, 1), demanded ? Device::Lane::demand : Device::Lane::bulk);
    });
    if (failed) note(std::move(failed));
    finish();
}

bool Preparation::run(std::size_t, Worker&) noexcept {
    Cache& cache = upload_->cache();
    cache.prepare_if_waiting(upload_);
    cache.end_work(upload_->view);
    return true;
}

/// Returns true unless it failed, or was cancelled.
bool Upload::is_wanted() const {
    const std::lock_guard lock(cache_.mutex_);
    return !fault && !cancelled;
}

/// Returns the tensors, in memory that is filled.
std::vector<FillTarget> Upload::arrived(const Space& space, std::uint64_t offset) const {
    const Layout& layout = group->layout;
    auto* const begin = static_cast<std::byte*>(space.memory->handle());
    std::vector<FillTarget> all;
    all.reserve(layout.tensors.size());
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
        const std::uint64_t at = offset + layout.places[i];
        if (space.memory->has_address())
            all.push_back({.tensor = layout.tensors[i], .address = begin + at, .size = layout.tensors[i].nbytes()});
        else all.push_back({.tensor = layout.tensors[i], .address = begin, .size = space.memory->size(), .offset = at});
    }
    return all;
}

void Upload::finish() noexcept {
    std::exception_ptr failed;
    const auto attempt = [&](auto&& work) {
        const std::exception_ptr thrown = fault_of(group->layout, work);
        if (!failed) failed = thrown;
    };
    attempt([&] { require_unchanged(group->layout.tensors); });
    const bool wanted = !failed && is_wanted();
    Filling::Hook hook;
    if (view.on_arrival && wanted)
        hook = [&](NativeStream stream, const Space& space, std::uint64_t offset) {
            view.on_arrival(stream, arrived(space, offset));
        };
    const Device::Lane lane = demanded ? Device::Lane::demand : Device::Lane::bulk;
    if (picture && !picture->is_whole && wanted)
        attempt([&] { filling.copy_picture(group->on_device->plan.tiled(group->layout), lane); });
    attempt([&] { filling.record(lane, hook); });
    if (failed) cache_.note_failure(failed);
    left.store(0, std::memory_order_relaxed);  // there is padding
    cache_.arrive(*this, std::move(failed));
}

}  // namespace safemap::SAFEMAP_ABI::device
