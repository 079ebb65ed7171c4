// Brings groups to the device. A group claims its room first, in one step under the lock; then it gets memory, from
// what is kept or from the device, and may have to wait for memory that is leaving; then readers do its jobs, and it
// arrives. Here, too: what cancels an upload, and what evicts a group.
#include "device/cache.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <cassert>
#include <exception>
#include <string>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// Returns the priority at which readers prepare uploads of a priority. Their jobs have one more, so that what has its
/// memory is read before more memory is got.
std::int64_t before_jobs(int priority) noexcept { return std::int64_t{2} * priority; }

}  // namespace

// Room.

/// The memory that goes to make room. Its groups are reserved: unless they are taken from here, they become resident
/// again.
struct Cache::Room {
    std::vector<Holding*> turns = {};    // slots whose group makes way for another one
    std::vector<Holding*> victims = {};  // holdings that go
    Ledger::Missing cancelled = {};      // bytes of prefetches to cancel

    explicit Room(Ledger& ledger) noexcept : ledger_(ledger) {}
    ~Room() {
        ledger_.restore(turns);
        ledger_.restore(victims);
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;

private:
    Ledger& ledger_;
};

/// Claims room for absent groups, and makes them arriving. Returns their uploads, or none if there is no room.
Uploads Cache::begin(View& view, const Groups& absent, const Ledger::Reach& reach, Trash& trash) {
    Uploads uploads;
    std::list<Upload*> list;
    std::vector<Group*> groups;
    uploads.reserve(absent.size());
    groups.reserve(absent.size());
    for (const auto& group : absent) {
        uploads.push_back(std::make_shared<Upload>(group));
        uploads.back()->demanded = reach.demanded;
        list.push_back(uploads.back().get());
        groups.push_back(group.get());
    }
    if (!admit(view, groups, reach, trash)) return {};
    auto place = list.begin();
    for (const auto& upload : uploads) {
        upload->place = place++;
        upload->group->upload = upload;
        upload->group->word.change(State::absent, State::arriving);
    }
    uploads_.splice(uploads_.end(), list);
    view.working += uploads.size();
    return uploads;
}

/// Begins the same before anybody waits for it: evicts nothing that was used later than `since`. Adds the uploads to
/// `begun`. Returns false if there is no room.
bool Cache::begin_ahead(View& view, const Groups& absent, std::uint64_t since, Uploads& begun) {
    Trash trash;  // stays empty: only a demand cancels
    begun.reserve(begun.size() + absent.size());
    const Uploads uploads = begin(view, absent, {.since = since, .demanded = false}, trash);
    begun.insert(begun.end(), uploads.begin(), uploads.end());
    return !uploads.empty();
}

/// Claims memory for absent groups, which must be brought together. Evicts what `reach` allows. If they are demanded,
/// also cancels prefetches that nobody waits for. Returns false, and changes nothing, if that is not enough.
bool Cache::admit(View& view, std::span<Group* const> groups, Ledger::Reach reach, Trash& trash) {
    Room room(ledger_);
    const std::vector<std::uint32_t> slots = take_slots(view.account, groups, room.turns);
    reach.slots = slots;
    for (reach.open_blocks = false;; reach.open_blocks = true) {
        if (make_room(view, view.account.claims_of(groups, slots, !reach.open_blocks), reach, room)) break;
        if (reach.open_blocks) return false;
    }
    const std::uint64_t in_blocks = view.account.in_blocks;
    for (Holding* const turn : std::exchange(room.turns, {})) vacate(*turn);
    for (Holding* const victim : std::exchange(room.victims, {})) evict(*victim);
    cancel_latest(view, room.cancelled, trash);
    settle(view.account, groups, slots, in_blocks, reach.demanded);
    return true;
}

/// Reserves what has to go so that `claims` bytes fit. Returns false if that is not enough.
bool Cache::make_room(const View& view, std::uint64_t claims, const Ledger::Reach& reach, Room& room) {
    ledger_.restore(std::exchange(room.victims, {}));
    room.cancelled = {};
    Ledger::Missing missing = ledger_.missing(view.account, claims);
    if (claims > view.account.cap) return false;
    ledger_.reserve(view.account, claims, missing, reach, room.victims);
    if (!missing || !reach.demanded) return !missing;
    const Ledger::Missing idle = cancellable(view);
    if (missing.own > idle.own) return false;
    // Its own prefetches give that. So what is left may go from others.
    room.cancelled = {.own = missing.own, .all = std::min(missing.own, missing.all)};
    missing = {.all = missing.all - room.cancelled.all};
    ledger_.reserve(view.account, claims, missing, reach, room.victims);
    room.cancelled.all += missing.all;
    return room.cancelled.all <= idle.all;
}

/// Returns the slot of each group, if the slot is empty or what is in it can go: that is reserved and added to `turns`.
/// Other groups get `no_slot`, and memory of their own.
std::vector<std::uint32_t> Cache::take_slots(const Account& account, std::span<Group* const> groups,
                                             std::vector<Holding*>& turns) {
    std::vector<std::uint32_t> slots(groups.size(), no_slot);
    turns.reserve(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::uint32_t wanted = groups[i]->slot;
        if (wanted == no_slot || std::ranges::find(slots, wanted) != slots.end()) continue;
        Holding* const slot = account.slot(wanted);
        if (slot != nullptr && !slot->groups.empty()) {
            if (!Ledger::try_reserve(*slot)) continue;
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

/// Returns the bytes of prefetches that can be cancelled: of a view, and of all.
Ledger::Missing Cache::cancellable(const View& view) const noexcept {
    Ledger::Missing sum;
    for (const Upload* upload : uploads_) {
        if (!is_idle(*upload, false)) continue;
        sum.all += upload->group->holding->size;
        if (upload->group->view.get() == &view) sum.own += upload->group->holding->size;
    }
    return sum;
}

/// Cancels prefetches, the latest first, until they release what is needed: those of the view first.
void Cache::cancel_latest(const View& view, Ledger::Missing needed, Trash& trash) noexcept {
    const auto cancel_while = [&](auto&& goes) {
        for (auto at = uploads_.end(); needed && at != uploads_.begin();) {
            Upload& upload = **--at;
            const bool is_own = upload.group->view.get() == &view;
            if (!is_idle(upload, false) || !goes(is_own)) continue;
            needed.subtract(upload.group->holding->size, is_own);
            ++at;  // cancel() may remove it
            cancel(upload, trash);
        }
    };
    cancel_while([&](bool is_own) { return is_own; });
    cancel_while([](bool) { return true; });
}

/// Gives each group a holding. There is room for all of them, and their slots are empty. `in_blocks`: bytes of all
/// blocks, when the room was counted.
void Cache::settle(Account& account, std::span<Group* const> groups, std::span<const std::uint32_t> slots,
                   std::uint64_t in_blocks, bool demanded) {
    Holding* block = nullptr;  // a new one for the small groups
    const auto holding_of = [&](const Group& group, std::uint32_t slot) -> Holding& {
        const std::uint64_t size = group.layout.size;
        const Account::Place* const place = account.place_of(group);
        if (slot != no_slot) {
            Holding* const there = account.slot(slot);
            return there != nullptr ? *there : ledger_.add(account, account.slots[slot].bytes, false, slot);
        }
        if (place != nullptr) return ledger_.holding_at(account, place->range);
        if (!account.shares(size)) return ledger_.add(account, account.rounded(size), false);
        if (Holding* const open = account.open_block(size)) return *open;
        if (block == nullptr || !block->has_room(size)) {
            block = &ledger_.add(account, account.next_block(size, in_blocks), true);
            in_blocks += block->size;
        }
        return *block;
    };
    std::size_t settled = 0;
    try {
        for (; settled < groups.size(); ++settled)
            ledger_.put(*groups[settled], holding_of(*groups[settled], slots[settled]), demanded);
    } catch (...) {
        for (Group* const group : groups.first(settled))
            if (Holding* const empty = ledger_.take_out(*group)) ledger_.remove(*empty);
        throw;
    }
}

// Memory.

/// The turn of a thread to allocate from the device: a prefetch, which allocates again and again, waits until demands
/// have their memory, or until somebody waits for it or cancels it. A driver serves one thread at a time, and not
/// always the one that came first.
class Cache::Turn {
public:
    Turn(Cache& cache, const Upload& upload) : cache_(cache) {
        Lock lock(cache_.mutex_);
        cache_.changed_.wait(lock,
                             [&] { return cache_.demands_allocating_ == 0 || upload.demanded || upload.cancelled; });
        has_come_ = !upload.cancelled;
        is_demand_ = upload.demanded && has_come_;
        if (is_demand_) ++cache_.demands_allocating_;
    }
    ~Turn() {
        if (!is_demand_) return;
        const std::lock_guard lock(cache_.mutex_);
        if (--cache_.demands_allocating_ == 0) cache_.changed_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Returns false if the upload was cancelled before.
    bool has_come() const noexcept { return has_come_; }

private:
    Cache& cache_;
    bool has_come_ = false;
    bool is_demand_ = false;
};

/// Gets the memory of an upload, and hands it to readers. A failure is the fault of the upload. If the request ends
/// first, leaves the rest to the next one who wants the upload. `helps`: this thread does jobs, too, until the upload
/// is finished.
void Cache::prepare(const std::shared_ptr<Upload>& upload, bool helps, const Request& request) noexcept {
    Space space;
    bool in_time = true;
    std::exception_ptr fault = fault_of(upload->group->layout, [&] { in_time = provide(*upload, request, space); });
    if (fault) note_failure(fault);
    Lock lock(mutex_);
    if (!in_time && !upload->cancelled) {
        Holding& holding = *upload->group->holding;
        if (!holding.shared) holding.fences.splice(holding.fences.end(), space.fences);
        upload->providing = false;
        upload->waits_for_help = true;
        changed_.notify_all();
        lock.unlock();
        return submit(upload);  // it goes on as a prefetch does
    }
    const bool is_provided = space && !fault;
    upload->filling.set(std::move(space), upload->group->offset);
    if (!is_provided || upload->cancelled) {
        const bool is_mapped = upload->filling.has_copies();
        lock.unlock();
        return is_mapped ? upload->finish() : arrive(*upload, std::move(fault));
    }
    if (upload->picture && upload->picture->is_whole) {
        lock.unlock();
        return upload->copy_picture();
    }
    upload->submitted = true;
    changed_.notify_all();
    const auto lane = upload->demanded ? Readers::Lane::demand : Readers::Lane::bulk;
    const std::int64_t priority = before_jobs(upload->priority) + 1;
    lock.unlock();
    if (upload->jobs() == 0) return upload->finish();
    // A single job is done by the thread that waits for it, sooner than another thread wakes up. A thread that joined
    // may wait no longer, so `demanded` is not enough.
    if (upload->jobs() == 1 && helps) return;
    try {
        readers_->submit(upload, lane, priority);
    } catch (...) {
        if (!helps) give_up(*upload, std::current_exception());
    }
}

/// Leaves it to readers to get the memory of uploads: that may wait for the device. Until then, who waits for one of
/// them can begin.
void Cache::let_readers_prepare(const Uploads& begun) noexcept {
    for (const auto& upload : begun) {
        bool is_cancelled = false;
        {
            const std::lock_guard lock(mutex_);
            is_cancelled = upload->cancelled;
            upload->waits_for_help = !is_cancelled;
            changed_.notify_all();
        }
        if (is_cancelled) prepare(upload, false);  // no more than its end
        else submit(upload);
    }
}

/// Queues the preparation of an upload. Without memory for that, it waits for help.
void Cache::submit(const std::shared_ptr<Upload>& upload) noexcept {
    try {
        const auto preparation = std::make_shared<Preparation>(upload);
        const std::lock_guard lock(mutex_);
        if (upload->finished) return;
        if (const auto known = upload->preparation.lock(); known && readers_->has_jobs(*known)) return;
        const auto lane = upload->demanded ? Readers::Lane::demand : Readers::Lane::bulk;
        readers_->submit(preparation, lane, before_jobs(upload->priority));
        upload->preparation = preparation;
        ++upload->view.working;
    } catch (const std::exception&) {
    }
}

void Cache::prepare_if_waiting(const std::shared_ptr<Upload>& upload) noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (!upload->claim()) return;
    }
    prepare(upload, false);
}

/// Drops the jobs of an upload that have not begun, because no reader will do them.
void Cache::give_up(Upload& upload, std::exception_ptr fault) noexcept {
    {
        const std::lock_guard lock(mutex_);
        if (upload.finished) return;
        if (!upload.fault) upload.fault = std::move(fault);
        if (!readers_->cancel(upload)) return;  // a thread that has a job of it in hand calls arrive()
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
    // At addresses that are kept, a cancelled upload of the same group may still write to its place.
    while (holding.writers > 0 && !holding.range.expired()) {
        if (!is_wanted(request)) return false;
        wait_for_change(lock, request);
        if (upload.cancelled) return true;
    }
    if (!holding.memory && !get_memory(lock, upload, request)) return false;
    if (upload.cancelled) return true;
    space.memory = holding.memory;
    if (holding.shared) space.fences = holding.fences;  // others have to wait for them, too
    else space.fences.swap(holding.fences);
    const bool is_own = !holding.shared;
    lock.unlock();
    if (space.memory->host_bytes().empty()) {
        // Memory in use is not mapped: the host would have to wait, where copies wait on the device.
        if (!is_own || !space.memory->can_be_mapped() || !are_done(space.fences)) {
            if (is_own) take_picture(upload);
            return true;
        }
        space.fences.clear();
        upload.filling.map(*space.memory);
        return true;
    }
    while (!wait_until_done(space.fences, next_look(request)))
        if (!is_wanted(request)) return false;
    space.fences.clear();
    return true;
}

/// Takes the picture of a group that is uploaded, or memory for one. Without that, the upload goes through slabs.
void Cache::take_picture(Upload& upload) noexcept {
    Leaving leaving;
    std::shared_ptr<Picture> picture;
    try {
        {
            const std::lock_guard lock(mutex_);
            if (upload.cancelled) return;
            picture = upload.picture = tier_.take(*upload.group, upload.demanded, leaving);
        }
        if (!picture) return free(leaving);
        std::shared_ptr<StagingBuffer>& buffer = picture->memory.front().buffer;
        for (const HostMemory& one : leaving.memory)
            if (one.size == picture->size()) buffer = one.buffer;
        free(leaving);
        if (!buffer) buffer = device_->allocate_staging(picture->size());
        if (!picture->is_whole) clear_padding(upload.group->layout, {0, picture->size()}, 0, buffer->bytes());
        upload.filling.set_picture(buffer);
    } catch (...) {  // no memory
        note_failure(std::current_exception());
        free(leaving);
        if (!picture) return;
        const std::lock_guard lock(mutex_);
        tier_.refuse(*upload.picture);
        upload.picture.reset();
    }
}

/// Frees host memory, which counts until then.
void Cache::free(Leaving& leaving) noexcept {
    leaving.memory.clear();
    if (leaving.surplus == 0) return;
    const std::lock_guard lock(mutex_);
    tier_.gone(std::exchange(leaving.surplus, 0));
}

/// Ends the use of the picture of an upload, which is over.
void Cache::end_picture(Upload& upload, bool is_whole) noexcept {
    const std::shared_ptr<Picture> picture = std::move(upload.picture);
    if (!picture) return;
    if (is_whole && picture->is_whole) upload.view.bytes_from_host += picture->group.layout.value_bytes;
    tier_.give_back(*picture, is_whole || picture->is_whole, upload.filling.copies_of_picture());
}

/// Gets memory for the holding of an upload, unless the upload is cancelled meanwhile. Returns false if the request
/// ends first.
bool Cache::get_memory(Lock& lock, Upload& upload, const Request& request) {
    Holding& holding = *upload.group->holding;
    const std::uint64_t size = holding.size;
    const std::shared_ptr<AddressRange> range = holding.range.lock();
    const bool is_reserved = holding.account->granularity > 0;
    Space space = heap_.take(size, range.get(), is_reserved);
    while (!space && !(heap_.fits(size) && (!range || range->is_empty()))) {
        if (!is_wanted(request)) return false;
        Space old = heap_.fits(size) ? Space() : heap_.take_to_free(size);
        if (old) free(lock, std::move(old), next_look(request));
        else wait_for_change(lock, request);
        // Another upload into the same block may have been faster.
        if (upload.cancelled || holding.memory) return true;
        if (range) space = heap_.take(size, range.get(), is_reserved);
    }
    if (!space) {
        heap_.coming(size);
        if (range) range->busy = true;
        const auto end_commit = [&](bool committed) {
            if (!range) return;
            range->busy = false;
            range->committed = committed;
        };
        lock.unlock();
        try {
            space.memory = allocate(size, upload, range.get(), request);
        } catch (...) {
            lock.lock();
            end_commit(false);
            heap_.gone(size);
            changed_.notify_all();
            throw;
        }
        lock.lock();
        end_commit(space.memory != nullptr);
        space.range = range;
    }
    if (!space.memory) {
        heap_.gone(size);
        changed_.notify_all();
        return upload.cancelled || is_wanted(request);
    }
    if (upload.cancelled || holding.memory) {  // another upload into the same block was faster
        space.last = &upload.view.account;
        heap_.keep(std::move(space));
        changed_.notify_all();
        return true;
    }
    Ledger::provide(holding, std::move(space.memory));
    holding.fences.splice(holding.fences.end(), space.fences);
    if (holding.shared) holding.account->open = &holding;
    return true;
}

/// Allocates device memory, at addresses that are kept or at others, unless the upload is cancelled before its turn. If
/// the device is full, frees what is kept, and tries once more, unless the request ends first.
std::shared_ptr<DeviceMemory> Cache::allocate(std::uint64_t size, const Upload& upload, const AddressRange* range,
                                              const Request& request) {
    const auto allocate_in_turn = [&]() -> std::shared_ptr<DeviceMemory> {
        const Turn turn(*this, upload);
        if (!turn.has_come()) return nullptr;
        if (upload.view.account.granularity == 0) return device_->allocate(size);
        auto memory = range != nullptr ? range->memory : device_->reserve(size);
        memory->commit();
        return memory;
    };
    try {
        return allocate_in_turn();
    } catch (const Error& error) {
        if (error.code() != Errc::out_of_memory) throw;
    }
    Lock lock(mutex_);
    while (Space space = heap_.take_to_free(0))
        if (!free(lock, std::move(space), next_look(request)) && !is_wanted(request)) return nullptr;
    lock.unlock();
    try {
        return allocate_in_turn();
    } catch (const Error& error) {
        const std::vector<LazyTensor>& tensors = upload.group->layout.tensors;
        if (error.code() != Errc::out_of_memory || tensors.size() == 1) throw;
        throw Error(Errc::out_of_memory, "for a bundle of " + std::to_string(tensors.size()) + " tensors, " +
                                             excerpt(tensors.front().name()) + " to " + excerpt(tensors.back().name()) +
                                             ": " + error.message());
    }
}

/// Frees memory that belongs to no holding, when nothing uses it any more. Releases the lock meanwhile. It counts until
/// it is free. Returns false, and keeps it, if it is in use until the deadline. Addresses that are kept stay.
bool Cache::free(Lock& lock, Space space, Deadline deadline) noexcept {
    const std::uint64_t size = space.memory->size();
    Account& account = *space.last;
    ++account.freeing;
    if (const auto range = space.range.lock()) range->busy = true;
    lock.unlock();
    const bool is_idle = wait_until_done(space.fences, deadline);
    if (is_idle) give_back(space);
    lock.lock();
    --account.freeing;
    if (const auto range = space.range.lock()) {
        range->busy = false;
        range->committed = !is_idle;
    }
    if (is_idle) heap_.gone(size);
    else heap_.keep(std::move(space));
    changed_.notify_all();
    return is_idle;
}

/// Frees memory; without its addresses, if they are kept. Who ends their range at this moment may hold them for longer.
void Cache::give_back(Space& space) noexcept {
    if (space.memory->can_decommit())
        if (const auto fault = decommit(*space.memory)) note_failure(fault);
    space.memory.reset();
}

/// Frees what is kept of an account. Others may have work of their own in what they had.
void Cache::free_kept(Lock& lock, Account& account) noexcept {
    while (Space space = heap_.take_of(account)) free(lock, std::move(space));
    for (auto spare = tier_.take_spare(account); !spare.empty(); spare = tier_.take_spare(account)) {
        const std::uint64_t size = spare.front().size;
        lock.unlock();
        wait_until_done(spare.front().copies);
        spare.clear();
        lock.lock();
        tier_.gone(size);
    }
}

// Ends.

/// Gives an upload priority over those that nobody waits for, and over those of requests with less.
void Cache::hurry(const std::shared_ptr<Upload>& upload, const Request& request) {
    const bool was_demanded = upload->demanded.exchange(true);
    if (!was_demanded) changed_.notify_all();  // it may be waiting for its turn to allocate
    const int before = std::exchange(upload->priority, std::max(upload->priority, request.priority));
    if (was_demanded && before == upload->priority) return;
    const std::int64_t priority = before_jobs(upload->priority);
    if (upload->submitted) readers_->submit(upload, Readers::Lane::demand, priority + 1);
    else if (const auto preparation = upload->preparation.lock())
        readers_->submit(preparation, Readers::Lane::demand, priority);
}

/// Makes a group resident whose upload is finished, or absent if it failed or was cancelled.
void Cache::arrive(Upload& upload, std::exception_ptr failed) noexcept {
    View& view = upload.view;
    settle_arrival(upload, std::move(failed));
    end_work(view, 1);  // nothing of the view is used after this
}

void Cache::settle_arrival(Upload& upload, std::exception_ptr failed) noexcept {
    decltype(Account::places)::node_type place;  // its end may free memory
    std::shared_ptr<Group> group;                // outlives the lock
    const std::lock_guard lock(mutex_);
    group = std::move(upload.group);
    uploads_.erase(upload.place);
    ++upload.view.arriving;
    drop_preparation(upload);
    if (!upload.fault) upload.fault = std::move(failed);
    upload.finished = true;
    changed_.notify_all();
    end_picture(upload, !upload.fault && !upload.cancelled);
    if (upload.cancelled) return leave(upload);
    const auto self = std::move(group->upload);  // the caller has it, too
    Space space = upload.filling.end();
    if (!upload.fault) {
        place = upload.view.account.places.extract(group.get());
        group->memory = std::move(space.memory);
        Fences& fences = upload.filling.has_copies() ? group->on_device->ready : group->holding->fences;
        fences.splice(fences.end(), space.fences);
        group->pending.store(!group->on_device->ready.empty(), std::memory_order_relaxed);
        group->word.change(State::arriving, State::resident);
        group->view->uploaded_bytes += group->layout.value_bytes;
        return;
    }
    // Threads that wait for the group see the upload's fault. If no thread waits, the next acquire throws it.
    group->view->look_again();
    if (!group->word.leased()) group->fault = std::move(upload.fault);
    group->word.change(State::arriving, State::absent);
    Fences& fences = group->holding->fences;
    fences.splice(fences.end(), space.fences);
    if (Holding* const empty = ledger_.take_out(*group))
        if (auto left = ledger_.remove(*empty)) heap_.keep(std::move(left));
}

/// Returns true if there is a prefetch into a shared block, which cannot be cancelled, or a cancelled one that still
/// writes to its block.
bool Cache::is_small_on_its_way() const noexcept {
    return std::ranges::any_of(uploads_,
                               [](const Upload* upload) { return upload->block != nullptr || is_idle(*upload, true); });
}

/// Waits for it, and helps. Releases the lock meanwhile.
void Cache::await_small(Lock& lock, const Request& request, Worker& worker) {
    const auto found = std::ranges::find_if(uploads_, [](const Upload* upload) { return is_idle(*upload, true); });
    if (found == uploads_.end() ||
        std::ranges::any_of(uploads_, [](const Upload* upload) { return upload->block != nullptr; })) {
        require_wanted(request);
        return wait_for_change(lock, request);
    }
    const auto upload = (*found)->group->upload;
    hurry(upload, {});
    lock.unlock();
    wait_for({upload}, worker, request);
    lock.lock();
}

/// Makes an arriving group absent. Its memory leaves when the jobs in progress are done.
void Cache::cancel(Upload& upload, Trash& trash) noexcept {
    Group& group = *upload.group;
    upload.cancelled = true;
    group.word.change(State::arriving, State::absent);
    trash.add(std::move(group.upload));
    group.view->look_again();
    Holding& holding = *group.holding;
    ledger_.take_out(group);
    if (holding.shared) {
        // Jobs in progress still write to it, so it stays until they are done.
        upload.block = &holding;
        ++holding.writers;
    } else {
        upload.leaving = ledger_.remove(holding);
    }
    // Nobody has the memory yet, and who began the upload may wait for other memory before it is prepared.
    if (!upload.providing) leave(upload);
    else changed_.notify_all();  // who gets its memory may be waiting for that
    // A thread that gets its memory, or has a job of it in hand, calls arrive() later.
    if (!upload.waits_for_help && (!upload.submitted || !readers_->cancel(upload))) return;
    upload.rest = upload.filling.has_copies() ? Upload::Rest::copies : Upload::Rest::group;
    if (upload.filling.has_copies()) return;
    uploads_.erase(upload.place);
    upload.finished = true;
    leave(upload);
    drop_preparation(upload);
    --upload.view.working;
}

/// Drops the preparation of an upload that is over, unless a reader is at it.
void Cache::drop_preparation(const Upload& upload) noexcept {
    const auto preparation = upload.preparation.lock();
    if (preparation && readers_->cancel(*preparation)) --upload.view.working;
}

/// Notes that a preparation is over, or that as many uploads have arrived. Then its view may end.
void Cache::end_work(View& view, std::size_t arrived) noexcept {
    const std::lock_guard lock(mutex_);
    view.arriving -= arrived;
    --view.working;
    changed_.notify_all();
}

/// Releases the memory of a cancelled upload. No job of it is in progress.
void Cache::leave(Upload& upload) noexcept {
    end_picture(upload, false);
    Fences fences = upload.filling.end().fences;
    if (Holding* const block = std::exchange(upload.block, nullptr)) {
        --block->writers;
        block->fences.splice(block->fences.end(), fences);
        if (block->groups.empty() && block->writers == 0) upload.leaving = ledger_.remove(*block);
    }
    upload.leaving.fences.splice(upload.leaving.fences.end(), fences);
    if (upload.leaving) heap_.keep(std::move(upload.leaving));
    changed_.notify_all();
}

/// Evicts all groups of a holding, which are reserved, and keeps its memory for others.
void Cache::evict(Holding& holding) noexcept {
    vacate(holding);
    if (Space space = ledger_.remove(holding)) heap_.keep(std::move(space));
}

/// Evicts all groups of a holding, which are reserved.
void Cache::vacate(Holding& holding) noexcept {
    ledger_.empty(holding, [&](Group& group) {
        ++group.view->evictions;
        group.word.change(State::reserved, State::absent);
        group.view->look_again();
    });
}

/// Evicts one group, if it is resident and not leased, and takes the memory that nobody uses any more. Returns nothing
/// if other groups share the memory, or nothing was evicted. A slot gives up its memory, too, and gets new memory when
/// the plan needs it.
Space Cache::evict(Group& group) noexcept {
    if (!group.word.try_reserve()) return {};
    group.word.change(State::reserved, State::absent);
    ++group.view->evictions;
    group.view->look_again();
    Holding& holding = *group.holding;
    const bool is_slot = holding.slot != no_slot;
    return ledger_.take_out(group) != nullptr || is_slot ? ledger_.remove(holding) : Space{};
}

}  // namespace safemap::SAFEMAP_ABI::device
