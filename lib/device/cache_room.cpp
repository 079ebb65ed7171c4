// Makes room for groups under the budget, and gets device memory for them. A group claims its room first, in one step
// under the lock. Its memory comes after that, from what is kept or from the device, and may have to wait for memory
// that is leaving.
#include "device/cache.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// Holdings whose groups are reserved. Unless they are taken from it, they become resident again.
struct Reserved {
    std::vector<Holding*> turns = {};    // slots whose group makes way for another one
    std::vector<Holding*> victims = {};  // holdings that go

    Reserved() = default;
    ~Reserved() {
        Residency::restore(turns);
        Residency::restore(victims);
    }
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;
};

}  // namespace

/// Claims memory for absent groups, which must be brought together. Evicts what `reach` allows, and cancels prefetches
/// that nobody waits for, if allowed. Returns false, and changes nothing, if that is not enough.
bool Cache::admit(std::span<Group* const> groups, Residency::Reach reach, bool may_cancel, Trash& trash) {
    // First, because groups that are reserved must not stay so if there is no memory.
    if (may_cancel) {
        trash.groups.reserve(uploads_.size());
        trash.uploads.reserve(uploads_.size());
        trash.copying.reserve(uploads_.size());
    }
    Reserved reserved;
    auto& [turns, victims] = reserved;
    const std::vector<std::uint32_t> slots = take_slots(groups, turns);
    reach.slots = slots;
    const auto is_enough = [&](std::uint64_t missing) {
        return missing == 0 || (may_cancel && missing <= cancellable());
    };
    std::uint64_t missing = residency_.reserve(residency_.claims_of(groups, slots), reach, victims);
    if (!is_enough(missing)) {
        // The block that small groups are put into can go, too.
        Residency::restore(std::exchange(victims, {}));
        Holding* const open = residency_.open(nullptr);
        missing = residency_.reserve(residency_.claims_of(groups, slots), reach, victims);
        if (!is_enough(missing)) {
            residency_.open(open);
            return false;
        }
    }
    for (Holding* const turn : turns) vacate(*turn, trash);
    turns.clear();
    for (Holding* const victim : victims) evict(*victim, trash);
    victims.clear();
    cancel_latest(missing, trash);
    settle(groups, slots);
    return true;
}

/// Returns the slot of each group, if the slot is empty or what is in it can go: that is reserved and added to `turns`.
/// Other groups get `no_slot`, and memory of their own.
std::vector<std::uint32_t> Cache::take_slots(std::span<Group* const> groups, std::vector<Holding*>& turns) {
    std::vector<std::uint32_t> slots(groups.size(), no_slot);
    turns.reserve(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::uint32_t wanted = groups[i]->slot;
        if (wanted == no_slot || std::ranges::find(slots, wanted) != slots.end()) continue;
        Holding* const slot = residency_.slot(wanted);
        if (slot != nullptr && !slot->groups.empty()) {
            if (!Residency::try_reserve(*slot)) continue;
            turns.push_back(slot);
        }
        slots[i] = wanted;
    }
    return slots;
}

/// Returns true for a prefetch that nobody waits for, into a shared block or not.
bool Cache::is_idle(const Upload& upload, bool shared) noexcept {
    if (upload.cancelled || upload.group->word.leased()) return false;
    return upload.group->holding->shared == shared;
}

/// Returns the bytes of prefetches that can be cancelled.
std::uint64_t Cache::cancellable() const noexcept {
    std::uint64_t sum = 0;
    for (const Upload* upload : uploads_)
        if (is_idle(*upload, false)) sum += upload->group->holding->size;
    return sum;
}

/// Waits for a prefetch into a shared block, which cannot be cancelled, and helps with it. Returns false without such a
/// prefetch. Releases the lock meanwhile.
bool Cache::await_small(Lock& lock, Worker& worker) {
    const auto found = std::ranges::find_if(uploads_, [](const Upload* upload) { return is_idle(*upload, true); });
    if (found == uploads_.end()) return false;
    const auto upload = (*found)->group->upload;
    hurry(upload, {});
    lock.unlock();
    wait_for({upload}, worker);
    lock.lock();
    return true;
}

/// Cancels prefetches, the latest first, until they release `bytes`.
void Cache::cancel_latest(std::uint64_t bytes, Trash& trash) {
    for (auto at = uploads_.end(); bytes > 0 && at != uploads_.begin();) {
        Upload& upload = **--at;
        if (!is_idle(upload, false)) continue;
        bytes -= std::min(bytes, upload.group->holding->size);
        ++at;  // cancel() may remove it
        cancel(upload, trash);
    }
}

/// Makes an arriving group absent. Its memory leaves when the jobs in progress are done.
void Cache::cancel(Upload& upload, Trash& trash) noexcept {
    Group& group = *upload.group;
    upload.cancelled = true;
    group.word.change(State::arriving, State::absent);
    trash.uploads.push_back(std::move(group.upload));
    let_go(group, trash);
    Holding& holding = *group.holding;
    residency_.take_out(group);
    if (holding.shared) {
        // Jobs in progress still write to it, so it stays until they are done.
        upload.block = &holding;
        ++holding.writers;
    } else {
        upload.leaving = residency_.remove(holding);
    }
    // Nobody has the memory yet, and who began the upload may wait for other memory before it is prepared.
    if (!upload.providing) leave(upload);
    // A thread that gets its memory, or has a job of it in hand, calls arrive() later.
    if (!upload.waits_for_help && (!upload.submitted || !readers_.cancel(upload))) return;
    if (upload.filling.has_copies()) return trash.copying.push_back(trash.uploads.back());
    uploads_.erase(upload.place);
    upload.finished = true;
    leave(upload);
    trash.groups.push_back(std::move(upload.group));
}

/// Releases the memory of a cancelled upload. No job of it is in progress.
void Cache::leave(Upload& upload) noexcept {
    Fences fences = upload.filling.end().fences;
    if (Holding* const block = std::exchange(upload.block, nullptr)) {
        --block->writers;
        block->fences.splice(block->fences.end(), fences);
        if (block->groups.empty() && block->writers == 0) upload.leaving = residency_.remove(*block);
    }
    upload.leaving.fences.splice(upload.leaving.fences.end(), fences);
    if (upload.leaving) heap_.keep(std::move(upload.leaving));
    changed_.notify_all();
}

/// Evicts all groups of a holding, which are reserved, and keeps its memory for others.
void Cache::evict(Holding& holding, Trash& trash) noexcept {
    vacate(holding, trash);
    if (Space space = residency_.remove(holding)) heap_.keep(std::move(space));
}

/// Evicts all groups of a holding, which are reserved.
void Cache::vacate(Holding& holding, Trash& trash) noexcept {
    stats_.evictions += holding.groups.size();
    for (Group* const group : holding.groups) {
        group->word.change(State::reserved, State::absent);
        group->memory.reset();
        holding.take_fences(*group);
        group->holding = nullptr;
        let_go(*group, trash);
    }
    holding.groups.clear();
}

/// Evicts one group, if it is resident and not leased, and takes the memory that nobody uses any more. Returns nothing
/// if other groups share the memory, or nothing was evicted. A slot gives up its memory, too, and gets new memory when
/// the plan needs it.
Space Cache::evict(Group& group, Trash& trash) noexcept {
    if (!group.word.try_reserve()) return {};
    group.word.change(State::reserved, State::absent);
    ++stats_.evictions;
    let_go(group, trash);
    Holding& holding = *group.holding;
    const bool is_slot = holding.slot != no_slot;
    return residency_.take_out(group) != nullptr || is_slot ? residency_.remove(holding) : Space{};
}

/// Stops holding the bundles of a group of which nobody else has a handle.
void Cache::let_go(const Group& group, Trash& trash) noexcept {
    const auto kept = kept_.find(&group);
    if (kept == kept_.end() || sleeping_) return;  // wake() brings it back
    trash.bundles.splice(trash.bundles.end(), kept->second);
    kept_.erase(kept);
}

/// Gives each group a holding. There is room for all of them, and their slots are empty.
void Cache::settle(std::span<Group* const> groups, std::span<const std::uint32_t> slots) {
    Holding* block = nullptr;  // a new one for the small groups
    const auto holding_of = [&](const Group& group, std::uint32_t slot) -> Holding& {
        const std::uint64_t size = group.layout.size;
        if (slot != no_slot) {
            Holding* const there = residency_.slot(slot);
            return there != nullptr ? *there : residency_.add(residency_.slot_bytes(slot), false, slot);
        }
        if (!residency_.shares(size)) return residency_.add(size, false);
        if (Holding* const open = residency_.open_block(size)) return *open;
        if (block == nullptr || !block->has_room(size)) block = &residency_.add(residency_.next_block(size), true);
        return *block;
    };
    std::size_t settled = 0;
    try {
        for (; settled < groups.size(); ++settled)
            Residency::put(*groups[settled], holding_of(*groups[settled], slots[settled]));
    } catch (...) {
        for (Group* const group : groups.first(settled))
            if (Holding* const empty = residency_.take_out(*group)) residency_.remove(*empty);
        throw;
    }
}

/// Gets the memory of an upload, and hands it to readers. A failure is the fault of the upload. If the request ends
/// first, leaves the rest to the next one who wants the upload. `helps`: this thread does jobs, too, until the upload
/// is finished.
void Cache::prepare(const std::shared_ptr<Upload>& upload, bool helps, const Request& request) noexcept {
    Space space;
    bool in_time = true;
    std::exception_ptr fault =
        fault_of(upload->group->layout.tensors.front().name(), [&] { in_time = provide(*upload, request, space); });
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
        lock.unlock();
        return arrive(*upload, std::move(fault));
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
    lock.unlock();
    if (space.memory->host_bytes().empty()) return true;
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
        else wait_for_change(lock, request);
        // Another upload into the same block may have been faster.
        if (upload.cancelled || holding.memory) return true;
    }
    if (!space) {
        heap_.coming(size);
        lock.unlock();
        try {
            space.memory = allocate(size);
        } catch (...) {
            lock.lock();
            heap_.gone(size);
            changed_.notify_all();
            throw;
        }
        lock.lock();
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

/// Allocates device memory. If the device is full, frees what is kept, and tries once more.
std::shared_ptr<DeviceMemory> Cache::allocate(std::uint64_t size) {
    try {
        return device_->allocate(size);
    } catch (const Error& error) {
        if (error.code() != Errc::out_of_memory) throw;
    }
    Lock lock(mutex_);
    free_kept(lock);
    lock.unlock();
    return device_->allocate(size);
}

/// Frees memory that belongs to no holding, when nothing uses it any more. Releases the lock meanwhile. It counts until
/// it is free. Returns false, and keeps it, if it is in use until the deadline.
bool Cache::free(Lock& lock, Space space, Deadline deadline) noexcept {
    const std::uint64_t size = space.memory->size();
    lock.unlock();
    const bool is_idle = wait_until_done(space.fences, deadline);
    if (is_idle) space.memory.reset();
    lock.lock();
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
