// Makes room for groups under the budget. A group claims its room first, in one step under the lock. It gets its memory
// after that; see cache_memory.cpp.
#include "device/cache.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// The memory that goes to make room. Its groups are reserved: unless they are taken from here, they become resident
/// again.
struct Cache::Room {
    std::vector<Holding*> turns = {};    // slots whose group makes way for another one
    std::vector<Holding*> victims = {};  // holdings that go
    struct Gift {
        Cache* from;
        std::vector<Holding*> victims;
    };
    std::vector<Gift> gifts = {};  // holdings of other caches that go
    std::uint64_t cancelled = 0;   // bytes of prefetches to cancel
    std::uint64_t cancelled_of_others = 0;

    Room() = default;
    ~Room() {
        Residency::restore(turns);
        give_up();
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;

    /// Reserves nothing any more, but for slots.
    void give_up() noexcept {
        Residency::restore(std::exchange(victims, {}));
        for (Gift& gift : gifts) Residency::restore(gift.victims);
        gifts.clear();
        cancelled = cancelled_of_others = 0;
    }
    /// Reserves holdings of another cache that have `bytes`, if it can. Returns the bytes that they have.
    std::uint64_t take(Cache& from, std::uint64_t bytes) {
        const auto before = std::ranges::find(gifts, &from, &Gift::from);
        // One list for each cache: what is in it is not taken again.
        Gift& gift = before != gifts.end() ? *before : gifts.emplace_back(Gift{&from, {}});
        const std::uint64_t had = size_of(gift.victims);
        from.residency_.give(bytes, {.since = from.now()}, gift.victims);
        return size_of(gift.victims) - had;
    }
    static std::uint64_t size_of(std::span<Holding* const> holdings) noexcept {
        std::uint64_t sum = 0;
        for (const Holding* holding : holdings) sum += holding->size;
        return sum;
    }
};

/// Blocks that small groups were put into, and that may go, too. Unless they went, they are open again at the end.
class Cache::Closed {
public:
    Closed() = default;
    ~Closed() {
        for (const auto& [residency, block] : blocks_)
            if (residency->has(block)) residency->open(block);
    }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

    void close(Residency& residency) {
        blocks_.reserve(blocks_.size() + 1);
        blocks_.emplace_back(&residency, residency.open(nullptr));
    }
    void keep_closed(const Residency& residency) noexcept {
        std::erase_if(blocks_, [&](const auto& one) { return one.first == &residency; });
    }

private:
    std::vector<std::pair<Residency*, Holding*>> blocks_;
};

/// Claims memory for absent groups, which must be brought together. Evicts what `reach` allows. If they are demanded,
/// also cancels prefetches that nobody waits for, and takes memory of other caches. Returns false, and changes nothing,
/// if that is not enough.
bool Cache::admit(std::span<Group* const> groups, Residency::Reach reach, bool demanded, Trash& trash) {
    // First, because groups that are reserved must not stay so if there is no memory.
    if (demanded) expect_cancelled(trash);
    Closed closed;
    Room room;
    const std::vector<std::uint32_t> slots = take_slots(groups, room.turns);
    reach.slots = slots;
    const auto fits = [&] { return make_room(residency_.claims_of(groups, slots), reach, demanded, room); };
    bool has_room = fits();
    if (!has_room && demanded && budget_->caches.size() > 1) {
        for (Cache* const other : budget_->caches)
            if (other != this) closed.close(other->residency_);
        has_room = fits();
    }
    if (!has_room) {
        closed.close(residency_);
        if (!fits()) return false;
        closed.keep_closed(residency_);
    }
    const std::uint64_t shared_bytes = residency_.shared_bytes();
    for (Holding* const turn : std::exchange(room.turns, {})) vacate(*turn, trash);
    for (Holding* const victim : std::exchange(room.victims, {})) evict(*victim, trash);
    for (Room::Gift& gift : room.gifts)
        for (Holding* const victim : std::exchange(gift.victims, {})) gift.from->evict(*victim, trash);
    cancel_latest(room.cancelled, trash);
    for (Cache* const other : budget_->caches)
        if (other != this) room.cancelled_of_others -= other->cancel_latest(room.cancelled_of_others, trash);
    settle(groups, slots, shared_bytes);
    return true;
}

/// Reserves what has to go so that `claims` bytes fit. Returns false if that is not enough.
bool Cache::make_room(std::uint64_t claims, Residency::Reach reach, bool demanded, Room& room) {
    room.give_up();
    const std::uint64_t part = budget_->equal_part();
    const std::uint64_t wanted = std::min(claims, residency_.left());  // the rest comes from this cache
    std::uint64_t given = 0;
    if (demanded && claims <= part - std::min(part, residency_.claimed())) {
        // This cache may have that much, so it takes what others have beyond their parts.
        for (Cache* const other : budget_->caches) {
            const std::uint64_t needed = wanted - std::min(wanted, budget_->claimed.free() + given);
            const std::uint64_t has = other->residency_.claimed();
            if (other != this && needed > 0 && has > part) given += room.take(*other, std::min(needed, has - part));
        }
    }
    std::uint64_t missing = residency_.reserve(claims, reach, room.victims, given);
    if (missing == 0 || !demanded) return missing == 0;
    room.cancelled = std::min(missing, cancellable());
    missing -= room.cancelled;
    if (missing == 0) return true;
    if (claims > residency_.left() + Room::size_of(room.victims) + room.cancelled) return false;
    for (Cache* const other : budget_->caches)
        if (other != this && missing > 0) missing -= std::min(missing, room.take(*other, missing));
    for (const Cache* const other : budget_->caches)
        if (other != this) room.cancelled_of_others += other->cancellable();
    room.cancelled_of_others = std::min(room.cancelled_of_others, missing);
    return missing == room.cancelled_of_others;
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

/// Waits for a prefetch into a shared block, which cannot be cancelled, and helps with it; or for a cancelled one that
/// still writes to its block. Returns false without such a prefetch, here and in the other caches, which admit() put
/// into `trash`. Releases the lock meanwhile.
bool Cache::await_small(Lock& lock, const Request& request, Worker& worker, const Trash& trash) {
    const auto await = [&](const auto& other) { return other->await_own_small(lock, request, worker); };
    return await_own_small(lock, request, worker) || std::ranges::any_of(trash.caches, await);
}

bool Cache::await_own_small(Lock& lock, const Request& request, Worker& worker) {
    const auto is_writer = [](const Upload* upload) { return upload->block != nullptr; };
    if (std::ranges::any_of(uploads_, is_writer)) {
        require_wanted(request);
        wait_for_change(lock, request);
        return true;
    }
    const auto found = std::ranges::find_if(uploads_, [](const Upload* upload) { return is_idle(*upload, true); });
    if (found == uploads_.end()) return false;
    const auto upload = (*found)->group->upload;
    hurry(upload, {});
    lock.unlock();
    wait_for({upload}, worker, request);
    lock.lock();
    return true;
}

/// Lets cancel_latest() of all caches do without memory, and keeps these caches alive.
void Cache::expect_cancelled(Trash& trash) const {
    std::size_t count = uploads_.size();
    trash.caches.reserve(trash.caches.size() + budget_->caches.size());
    for (Cache* const cache : budget_->caches) {
        if (cache == this) continue;
        count += cache->uploads_.size();
        if (auto shared = cache->weak_from_this().lock()) trash.caches.push_back(std::move(shared));
    }
    trash.reserve(count);
}

/// Cancels prefetches, the latest first, until they release `bytes`. Returns how much of `bytes` they release.
std::uint64_t Cache::cancel_latest(std::uint64_t bytes, Trash& trash) {
    std::uint64_t left = bytes;
    for (auto at = uploads_.end(); left > 0 && at != uploads_.begin();) {
        Upload& upload = **--at;
        if (!is_idle(upload, false)) continue;
        left -= std::min(left, upload.group->holding->size);
        ++at;  // cancel() may remove it
        cancel(upload, trash);
    }
    return bytes - left;
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
    else changed_.notify_all();  // who gets its memory may be waiting for that
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

/// Gives each group a holding. There is room for all of them, and their slots are empty. `shared_bytes`: of all blocks,
/// when the room was counted.
void Cache::settle(std::span<Group* const> groups, std::span<const std::uint32_t> slots, std::uint64_t shared_bytes) {
    Holding* block = nullptr;  // a new one for the small groups
    const auto holding_of = [&](const Group& group, std::uint32_t slot) -> Holding& {
        const std::uint64_t size = group.layout.size;
        if (slot != no_slot) {
            Holding* const there = residency_.slot(slot);
            return there != nullptr ? *there : residency_.add(residency_.slot_bytes(slot), false, slot);
        }
        if (!residency_.shares(size)) return residency_.add(size, false);
        if (Holding* const open = residency_.open_block(size)) return *open;
        if (block == nullptr || !block->has_room(size)) {
            block = &residency_.add(residency_.next_block(size, shared_bytes), true);
            shared_bytes += block->size;
        }
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

}  // namespace safemap::SAFEMAP_ABI::device
