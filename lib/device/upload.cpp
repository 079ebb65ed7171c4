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
    : Task(of->plan.jobs()),
      cache_(*of->view->cache),
      view(*of->view),
      group(std::move(of)),
      filling(*cache_.device_, cache_.staging_, view.paths) {}

bool Upload::run(std::size_t job, Worker& worker) noexcept {
    const StagingRing::Taker taker{[&] { return demanded ? Device::Lane::demand : Device::Lane::bulk; },
                                   [&] { return cache_.readers_->help_demand(worker); }};
    std::exception_ptr failed = fault_of(group->plan.tensor(group->layout, job).name(),
                                         [&] { filling.fill(group->layout, group->plan, job, worker, taker); });
    if (!failed) return true;
    cache_.note_failure(failed);
    const std::lock_guard lock(cache_.mutex_);
    // Moved: no thread may destroy an exception that another one has read. The count of its owners is hidden from
    // ThreadSanitizer.
    if (!fault) fault = std::move(failed);
    return false;
}

bool Preparation::run(std::size_t, Worker&) noexcept {
    Cache& cache = upload_->cache();
    cache.prepare_if_waiting(upload_);
    cache.end_work(upload_->view);
    return true;
}

void Upload::finish() noexcept {
    std::exception_ptr failed;
    const auto attempt = [&](auto&& work) {
        const std::exception_ptr thrown = fault_of(group->layout.tensors.front().name(), work);
        if (!failed) failed = thrown;
    };
    attempt([&] { filling.record(demanded ? Device::Lane::demand : Device::Lane::bulk); });
    if (failed) cache_.note_failure(failed);
    attempt([&] { require_unchanged(group->layout.tensors); });
    cache_.arrive(*this, std::move(failed));
}

}  // namespace safemap::SAFEMAP_ABI::device
