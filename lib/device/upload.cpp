// Upload: a group on its way to a device.
#include "device/upload.hpp"

#include "device/cache.hpp"
#include "lazy/page_cache.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::device {

bool Upload::run(std::size_t job, Worker& worker) noexcept {
    const Layout& layout = group->layout;
    const std::exception_ptr failed = fault_of(group->plan.tensor(layout, job).name(), [&] {
        const auto bytes = memory->host_bytes();
        cache_.read_ += bytes.empty() ? read_staged(job, worker)
                                      : group->plan.fill(layout, job, worker, bytes.subspan(offset, layout.size));
    });
    if (!failed) return true;
    const std::lock_guard lock(cache_.mutex_);
    if (!fault) fault = failed;
    return false;
}

/// Reads a job into a slab, and queues its copies. They may still be in progress when this returns.
std::uint64_t Upload::read_staged(std::size_t job, Worker& worker) {
    StagingRing::Loan loan = cache_.staging_.take();
    // A device copies in order, so the last event is enough to reuse the slab. Each may say that its copy failed.
    const auto queued = [&](std::shared_ptr<DeviceEvent> event) {
        loan.fence(event);
        remember(std::move(event));
    };
    const FillPlan::Copies put{[&](std::uint64_t to, Extent from) {
                                   queued(cache_.device_->copy_to_device(memory, offset + to, loan.buffer(), from));
                               },
                               [&](RowCopy rows) {
                                   rows.to += offset;
                                   queued(cache_.device_->copy_rows_to_device(memory, loan.buffer(), rows));
                               }};
    return group->plan.fill(group->layout, job, worker, loan.buffer()->bytes(), put);
}

/// Remembers a copy that finish() has to wait for.
void Upload::remember(std::shared_ptr<DeviceEvent> copy) {
    try {
        const std::lock_guard lock(cache_.mutex_);
        copies.push_back(copy);
    } catch (...) {
        wait_until_done(*copy);
        throw;
    }
}

void Upload::finish() noexcept {
    // All jobs are done, so no other thread touches `copies`, but the fault may be asked for.
    std::exception_ptr failed;
    const auto attempt = [&](auto&& work) {
        const std::exception_ptr thrown = fault_of(group->layout.tensors.front().name(), work);
        if (!failed) failed = thrown;
    };
    for (const auto& copy : copies) attempt([&] { copy->wait(); });
    copies.clear();
    attempt([&] { require_unchanged(group->layout.tensors); });
    cache_.arrive(*this, std::move(failed));
}

}  // namespace safemap::SAFEMAP_ABI::device
