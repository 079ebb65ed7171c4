// The order of copies and of the work of callers: a lease comes after the copies that brought its tensors, and memory
// is written again after the work that used it. A stream of the caller waits on the device, the host does not.
#include "device/cache.hpp"
#include "device/stopwatch.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

void await(const DeviceEvent& event, const Request& request) {
    while (!event.wait_until(next_look(request))) require_wanted(request);
}

}  // namespace

NativeStream Cache::orderable(NativeStream stream) const {
    return stream && !device_->is_capturing(stream) ? stream : NativeStream{};
}

void Cache::order(const BundleData& bundle, NativeStream stream, const Request& request) {
    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    for (const auto& group : bundle.groups)
        if (group->pending.load(std::memory_order_acquire)) order(*group, stream, request);
}

/// Orders what comes next after the copies of a leased group, so `ready` does not change.
void Cache::order(Group& group, NativeStream stream, const Request& request) {
    bool all_done = true;
    const auto fault = fault_of(group.layout.tensors.front().name(), [&] {
        for (const Fence& fence : group.ready) {
            if (fence.event->done()) continue;
            if (stream) {
                all_done = false;
                device_->make_wait(stream, *fence.event);
            } else {
                const Stopwatch stopwatch(stalled_);
                await(*fence.event, request);
            }
        }
    });
    if (fault) {
        note_failure(fault);
        throw_copy(fault);
    }
    if (all_done) group.pending.store(false, std::memory_order_release);
}

bool Cache::is_there(const BundleData& bundle) noexcept {
    const auto is_done = [](const std::shared_ptr<Group>& group) {
        return !group->pending.load(std::memory_order_acquire) || are_done(group->ready);
    };
    return std::ranges::all_of(bundle.groups, is_done);
}

bool Cache::use(const BundleData& bundle, NativeStream stream) noexcept {
    if (lost_.load(std::memory_order_relaxed)) return true;  // it is never written again
    try {
        if (!orderable(stream)) return false;
        remember_use(bundle, stream);
        return true;
    } catch (const Error& error) {
        if (error.code() != Errc::device_failed) return false;
        note_failure(std::current_exception());
        return true;
    } catch (...) {
        return false;
    }
}

void Cache::release(const BundleData& bundle, NativeStream stream) noexcept {
    if (!stream || use(bundle, stream)) end_leases(bundle);
    else hold(bundle);  // nobody knows when the memory is free
}

/// Fences the memory of a bundle by the work that is in `stream` so far.
void Cache::remember_use(const BundleData& bundle, NativeStream stream) {
    const std::lock_guard lock(mutex_);
    // Recorded under the lock: a fence takes the place of an earlier one of the stream, never of a later one.
    const auto event = device_->record(stream);
    for (const auto& group : bundle.groups) {
        drop_done(group->uses);
        add(group->uses, {event, stream});
    }
}

/// Keeps the groups of a bundle leased until stop(), even if nobody has a handle of the bundle any more.
void Cache::hold(const BundleData& bundle) noexcept {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    for (const auto& group : bundle.groups) group->self = group;
}

void Cache::lease_until_stop(const BundleData& bundle) noexcept {
    for (const auto& group : bundle.groups) group->word.lease();
    hold(bundle);
}

void Cache::end_leases(const BundleData& bundle) noexcept {
    bool frees_slot = false;
    for (const auto& group : bundle.groups) {
        frees_slot = frees_slot || group->slot.load(std::memory_order_relaxed) != no_slot;
        group->word.release();
    }
    if (frees_slot && follows()) go_on();
    if (stopped_) free_unleased(bundle);
}

/// Frees the groups of a lease that outlived the uploader.
void Cache::free_unleased(const BundleData& bundle) noexcept {
    Trash trash;
    Lock lock(mutex_);
    for (const auto& group : bundle.groups)
        if (Space space = evict(*group, trash)) free(lock, std::move(space));
}

/// Remembers that the device failed, if that is the fault. What is on it is lost.
void Cache::note_failure(const std::exception_ptr& fault) noexcept {
    try {
        std::rethrow_exception(fault);
    } catch (const Error& error) {
        if (error.code() != Errc::device_failed) return;
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = fault;
        lost_ = true;
    } catch (...) {
    }
}

void Cache::throw_lost() const {
    std::exception_ptr failure;
    {
        const std::lock_guard lock(mutex_);
        failure = failure_;
    }
    throw_copy(failure);
}

}  // namespace safemap::SAFEMAP_ABI::device
