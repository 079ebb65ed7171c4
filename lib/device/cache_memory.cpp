// Gets device memory for groups that have claimed their room: from what is kept, or from the device. May have to wait
// for memory that is leaving. Frees memory that nobody uses any more.
#include "device/cache.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// The turn of a thread to allocate from the device: a prefetch, which allocates again and again, waits until demands
/// have their memory, or until somebody waits for it or cancels it. A driver serves one thread at a time, and not
/// always the one that came first.
class Turn {
public:
    Turn(Budget& budget, const Upload& upload) : budget_(budget) {
        std::unique_lock lock(budget_.mutex);
        budget_.changed.wait(lock,
                             [&] { return budget_.demands_allocating == 0 || upload.demanded || upload.cancelled; });
        has_come_ = !upload.cancelled;
        is_demand_ = upload.demanded && has_come_;
        if (is_demand_) ++budget_.demands_allocating;
    }
    ~Turn() {
        if (!is_demand_) return;
        const std::lock_guard lock(budget_.mutex);
        if (--budget_.demands_allocating == 0) budget_.changed.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Returns false if the upload was cancelled before.
    bool has_come() const noexcept { return has_come_; }

private:
    Budget& budget_;
    bool has_come_ = false;
    bool is_demand_ = false;
};

}  // namespace

/// Gets the memory of an upload, and hands it to readers. A failure is the fault of the upload. If the request ends
/// first, leaves the rest to the next one who wants the upload. `helps`: this thread does jobs, too, until the upload
/// is finished.
void Cache::prepare(const std::shared_ptr<Upload>& upload, bool helps, const Request& request) noexcept {
    Space space;
    bool in_time = true;
    std::exception_ptr fault =
        fault_of(upload->group->layout.tensors.front().name(), [&] { in_time = provide(*upload, request, space); });
    if (fault) note_failure(fault);
    Lock lock(mutex_);
    if (!in_time && !upload->cancelled) {
        Holding& holding = *upload->group->holding;
        if (!holding.shared) holding.fences.splice(holding.fences.end(), space.fences);
        upload->providing = false;
        upload->waits_for_help = true;
        return changed_.notify_all();
    }
    const bool is_provided = space && !fault;
    upload->filling.set(std::move(space), upload->group->offset);
    if (!is_provided || upload->cancelled) {
        const bool is_mapped = upload->filling.has_copies();
        lock.unlock();
        return is_mapped ? upload->finish() : arrive(*upload, std::move(fault));
    }
    upload->submitted = true;
    changed_.notify_all();
    const auto lane = upload->demanded ? Readers::Lane::demand : Readers::Lane::bulk;
    const int priority = upload->priority;
    lock.unlock();
    if (upload->jobs() == 0) return upload->finish();
    // A single job is done by the thread that waits for it, sooner than another thread wakes up. A thread that joined
    // may wait no longer, so `demanded` is not enough.
    if (upload->jobs() == 1 && helps) return;
    try {
        readers_.submit(upload, lane, priority);
    } catch (...) {
        if (!helps) give_up(*upload, std::current_exception());
    }
}

/// Drops the jobs of an upload that have not begun, because no reader will do them.
void Cache::give_up(Upload& upload, std::exception_ptr fault) noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (upload.finished) return;
        if (!upload.fault) upload.fault = std::move(fault);
        if (!readers_.cancel(upload)) return;  // a thread that has a job of it in hand calls arrive()
    }
    upload.finish();
}

/// Gets the memory of the holding that an upload has, with the fences of what was there before. Gets nothing if the
/// upload was cancelled. Returns false if the request ends first.
bool Cache::provide(Upload& upload, const Request& request, Space& space) {
    Lock lock(mutex_);
    if (upload.cancelled) return true;
    upload.providing = true;
    Holding& holding = *upload.group->holding;
    if (!holding.memory && !get_memory(lock, upload, request)) return false;
    if (upload.cancelled) return true;
    space.memory = holding.memory;
    if (holding.shared) space.fences = holding.fences;  // others have to wait for them, too
    else space.fences.swap(holding.fences);
    const bool is_own = !holding.shared;
    lock.unlock();
    if (space.memory->host_bytes().empty()) {
        // Memory in use is not mapped: the host would have to wait, where copies wait on the device.
        if (!is_own || !space.memory->can_be_mapped() || !are_done(space.fences)) return true;
        space.fences.clear();
        upload.filling.map(*space.memory);
        return true;
    }
    while (!wait_until_done(space.fences, next_look(request)))
        if (!is_wanted(request)) return false;
    space.fences.clear();
    return true;
}

/// Gets memory for the holding of an upload, unless the upload is cancelled meanwhile. Returns false if the request
/// ends first.
bool Cache::get_memory(Lock& lock, Upload& upload, const Request& request) {
    Holding& holding = *upload.group->holding;
    const std::uint64_t size = holding.size;
    Space space = heap_.take(size);
    while (!space && !heap_.fits(size)) {
        if (!is_wanted(request)) return false;
        if (Space old = heap_.take_to_free(size)) free(lock, std::move(old), next_look(request));
        else if (heap_.fits_here(size) && others_keep()) free_of_others(lock, heap_.missing(size), next_look(request));
        else wait_for_change(lock, request);
        // Another upload into the same block may have been faster.
        if (upload.cancelled || holding.memory) return true;
    }
    if (!space) {
        heap_.coming(size);
        lock.unlock();
        try {
            space.memory = allocate(size, upload);
        } catch (...) {
            lock.lock();
            heap_.gone(size);
            changed_.notify_all();
            throw;
        }
        lock.lock();
    }
    if (!space.memory) {
        heap_.gone(size);
        changed_.notify_all();
        return true;
    }
    if (upload.cancelled || holding.memory) {  // another upload into the same block was faster
        heap_.keep(std::move(space));
        changed_.notify_all();
        return true;
    }
    holding.memory = std::move(space.memory);
    holding.fences.splice(holding.fences.end(), space.fences);
    if (holding.shared) residency_.open(&holding);
    return true;
}

/// Returns true if another cache keeps memory that can be freed.
bool Cache::others_keep() const noexcept {
    return std::ranges::any_of(budget_->caches,
                               [this](const Cache* other) { return other != this && other->heap_.keeps(); });
}

/// Frees a piece of memory that another cache keeps, of `bytes` if there is one. Releases the lock meanwhile, so
/// nothing that was known before is certain after it.
void Cache::free_of_others(Lock& lock, std::uint64_t bytes, Deadline deadline) {
    auto others = budget_->others(*this);
    for (const auto& other : others) {
        Space space = other->heap_.take_kept(bytes);
        if (!space) continue;
        other->free(lock, std::move(space), deadline);
        break;
    }
    lock.unlock();
    others.clear();
    lock.lock();
}

/// Allocates device memory, unless the upload is cancelled before its turn. If the device is full, frees what is kept,
/// and tries once more.
std::shared_ptr<DeviceMemory> Cache::allocate(std::uint64_t size, const Upload& upload) {
    const auto allocate_in_turn = [&] {
        const Turn turn(*budget_, upload);
        return turn.has_come() ? device_->allocate(size) : nullptr;
    };
    try {
        return allocate_in_turn();
    } catch (const Error& error) {
        if (error.code() != Errc::out_of_memory) throw;
    }
    Lock lock(mutex_);
    free_kept(lock);
    while (others_keep()) free_of_others(lock, 0, Deadline::max());
    lock.unlock();
    return allocate_in_turn();
}

/// Frees memory that belongs to no holding, when nothing uses it any more. Releases the lock meanwhile. It counts until
/// it is free. Returns false, and keeps it, if it is in use until the deadline.
bool Cache::free(Lock& lock, Space space, Deadline deadline) noexcept {
    const std::uint64_t size = space.memory->size();
    ++freeing_;
    lock.unlock();
    const bool is_idle = wait_until_done(space.fences, deadline);
    if (is_idle) space.memory.reset();
    lock.lock();
    --freeing_;
    if (is_idle) heap_.gone(size);
    else heap_.keep(std::move(space));
    changed_.notify_all();
    return is_idle;
}

void Cache::free_kept(Lock& lock) noexcept {
    while (Space space = heap_.take_to_free(0)) free(lock, std::move(space));
}

/// Frees everything that is not leased, and all that is kept.
void Cache::evict_all(Lock& lock, Trash& trash) noexcept {
    for (std::size_t i = 0; i < residency_.holdings().size();) {
        Holding& holding = *residency_.holdings()[i];
        if (Residency::try_reserve(holding)) evict(holding, trash);  // puts another one at `i`
        else ++i;
    }
    free_kept(lock);
}

}  // namespace safemap::SAFEMAP_ABI::device
