// Leases bundles: in one step if everything is resident, otherwise under the lock.
//
// A group is absent, arriving or resident. An acquire leases all groups of its bundle, whatever their state, and then
// claims room for all absent ones in one step: free bytes, the memory of residents that nobody leases, and that of
// prefetches that nobody waits for. If that is not enough, leases hold too much, and it is refused. Otherwise nothing
// that others do can take the room away again, so the acquire waits only for what is already moving: it gets memory,
// reads jobs of its own groups like any reader, and sleeps only if other threads have the last of these jobs in hand.
// A request does the same in two halves, and leaves the reading between them to others.
#include "device/cache.hpp"
#include "device/stopwatch.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

namespace {

[[noreturn]] void throw_stopped() {
    throw Error(Errc::cancelled, "the uploader was destroyed before the tensors arrived");
}

}  // namespace

/// The leases of an acquire, which end with it unless they are passed on.
class Cache::Leases {
public:
    /// `held`: the leases are there already.
    explicit Leases(const BundleData& bundle, bool held = false) noexcept : bundle_(bundle), held_(held) {}
    ~Leases() { end(); }
    Leases(const Leases&) = delete;
    Leases& operator=(const Leases&) = delete;

    void take(std::uint64_t time) noexcept {
        for (const auto& group : bundle_.groups) {
            group->word.lease();
            group->used.store(time, std::memory_order_relaxed);
        }
        held_ = true;
    }
    /// Ends them while the cache is locked: nothing else follows from it.
    void end_under_lock() noexcept {
        for (const auto& group : bundle_.groups) group->word.release();
        held_ = false;
    }
    void end() noexcept {
        if (std::exchange(held_, false)) bundle_.cache->end_leases(bundle_);
    }
    void pass_on() noexcept { held_ = false; }

private:
    const BundleData& bundle_;
    bool held_;
};

bool Cache::try_lease(const BundleData& bundle) noexcept {
    const auto end = bundle.groups.end();
    for (auto group = bundle.groups.begin(); group != end; ++group) {
        if ((*group)->word.try_lease()) {
            // Later than the last acquire of absent groups: so is this lease.
            const std::uint64_t time = (*group)->cache.time_.load(std::memory_order_relaxed) + 1;
            // Not stored without need: other leases of this group read it.
            if ((*group)->used.load(std::memory_order_relaxed) != time)
                (*group)->used.store(time, std::memory_order_relaxed);
            continue;
        }
        while (group != bundle.groups.begin()) (*--group)->word.release();
        return false;
    }
    return true;
}

void Cache::lease(const std::shared_ptr<const BundleData>& bundle, Keep keep_it, const Request& request) {
    const Stopwatch stopwatch(stalled_);
    auto worker = readers_.borrow_worker();
    const Uploads uploads = begin_lease(*bundle, request, *worker, !is_limited(request));
    end_wait(bundle, keep_it, request, uploads, *worker);
    readers_.give_back(std::move(worker));
}

Cache::Uploads Cache::request(const std::shared_ptr<const BundleData>& bundle, const Request& request) {
    if (try_lease(*bundle)) {
        if (follows()) reached(*bundle);
        return {};
    }
    auto worker = readers_.borrow_worker();
    Uploads uploads = begin_lease(*bundle, request, *worker, false);
    readers_.give_back(std::move(worker));
    return uploads;
}

void Cache::end_request(const std::shared_ptr<const BundleData>& bundle, const Request& request,
                        const Uploads& uploads) {
    if (uploads.empty()) return;
    Leases leases(*bundle, true);
    if (stopped_) throw_stopped();
    const Stopwatch stopwatch(stalled_);
    auto worker = readers_.borrow_worker();
    leases.pass_on();
    end_wait(bundle, Keep::no, request, uploads, *worker);
    readers_.give_back(std::move(worker));
}

void Cache::cancel_request(const BundleData& bundle, const Uploads& uploads) noexcept {
    end_leases(bundle);
    abandon(uploads);
}

bool Cache::are_over(const Uploads& uploads) const noexcept {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(uploads, [](const auto& upload) { return upload->finished; });
}

/// Leases all groups, and begins the uploads of those that are absent. Returns all uploads that the lease waits for.
/// Throws budget_exceeded, the fault of a prefetch, and errors of the request; then nothing is leased.
Cache::Uploads Cache::begin_lease(const BundleData& bundle, const Request& request, Worker& worker, bool helps) {
    Trash trash;
    Leases leases(bundle);
    Uploads uploads;

    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    Lock lock(mutex_);
    const std::uint64_t time = time_ += 2;
    leases.take(time);
    Groups absent;
    Uploads begun;
    do {
        require_wanted(request);
        absent = join_arriving(lock, bundle, request, worker, uploads, trash);
        uploads.reserve(uploads.size() + absent.size());
        begun = begin(absent, {.since = now()}, true, trash);
    } while (begun.size() < absent.size() && await_small(lock, request, worker, trash));
    if (begun.size() < absent.size()) {
        leases.end_under_lock();
        refuse(bundle);
    }
    for (const auto& upload : begun) upload->priority = request.priority;
    Uploads ahead;  // uploads that the plan needs next
    pass(bundle);
    advance(ahead, trash);
    lock.unlock();

    trash.clear();
    for (const auto& upload : begun) {
        prepare(upload, helps, request);
        uploads.push_back(upload);
    }
    for (const auto& upload : ahead) prepare(upload, false);
    leases.pass_on();
    return uploads;
}

/// Waits for the uploads of a lease that was begun. Throws their faults, and errors of the request; then nothing is
/// leased.
void Cache::end_wait(const std::shared_ptr<const BundleData>& bundle, Keep keep_it, const Request& request,
                     const Uploads& uploads, Worker& worker) {
    Leases leases(*bundle, true);
    try {
        wait_for(uploads, worker, request);
    } catch (const Error& error) {
        leases.end();
        if (error.code() == Errc::cancelled) abandon(uploads);
        throw;
    }
    const std::lock_guard lock(mutex_);
    for (const auto& upload : uploads) {
        if (!upload->cancelled && !upload->fault) continue;
        leases.end_under_lock();
        if (upload->cancelled) throw_stopped();
        throw_copy(upload->fault);
    }
    if (keep_it == Keep::yes) keep(bundle);
    leases.pass_on();
}

/// Cancels the uploads that nobody wants any more.
void Cache::abandon(const Uploads& uploads) noexcept {
    try {
        Trash trash;
        const std::lock_guard lock(mutex_);
        trash.reserve(uploads.size());
        for (const auto& upload : uploads)
            if (!upload->finished && is_idle(*upload, false)) cancel(*upload, trash);
    } catch (const std::bad_alloc&) {
        // They go on as prefetches.
    }
}

/// Returns the groups that are absent. Adds the uploads of arriving groups to `uploads`, and gives them priority. If an
/// absent group needs a slot into which another one is on its way, waits until that has arrived. Throws the fault of a
/// prefetch.
Cache::Groups Cache::join_arriving(Lock& lock, const BundleData& bundle, const Request& request, Worker& worker,
                                   Uploads& uploads, Trash& trash) {
    for (;;) {
        Groups absent;
        uploads.clear();
        for (const auto& group : bundle.groups) {
            if (group->word.state() == State::arriving) {
                hurry(group->upload, request);
                uploads.push_back(group->upload);
            } else if (group->word.state() == State::absent) {
                if (const auto fault = std::exchange(group->fault, nullptr)) {
                    let_go(*group, trash);
                    throw_copy(fault);
                }
                absent.push_back(group);
            }
        }
        const auto busy = in_the_way(absent);
        if (!busy) return absent;
        hurry(busy, request);
        lock.unlock();
        wait_for({busy}, worker, request);  // helps: there may be no other reader
        lock.lock();
    }
}

/// Gives an upload priority over those that nobody waits for, and over those of requests with less.
void Cache::hurry(const std::shared_ptr<Upload>& upload, const Request& request) {
    const bool was_demanded = upload->demanded.exchange(true);
    if (!was_demanded) changed_.notify_all();  // it may be waiting for its turn to allocate
    const int before = std::exchange(upload->priority, std::max(upload->priority, request.priority));
    if (!upload->submitted || (was_demanded && before == upload->priority)) return;
    readers_.submit(upload, Readers::Lane::demand, upload->priority);
}

/// Claims room for absent groups, and makes them arriving. Returns their uploads, or none if there is no room.
Cache::Uploads Cache::begin(const Groups& absent, Residency::Reach reach, bool demanded, Trash& trash) {
    Uploads uploads;
    std::list<Upload*> list;
    std::vector<Group*> groups;
    uploads.reserve(absent.size());
    groups.reserve(absent.size());
    for (const auto& group : absent) {
        uploads.push_back(std::make_shared<Upload>(group));
        uploads.back()->demanded = demanded;
        list.push_back(uploads.back().get());
        groups.push_back(group.get());
    }
    if (!admit(groups, reach, demanded, trash)) return {};
    auto place = list.begin();
    for (const auto& upload : uploads) {
        upload->place = place++;
        upload->group->upload = upload;
        upload->group->word.change(State::absent, State::arriving);
    }
    uploads_.splice(uploads_.end(), list);
    return uploads;
}

/// Helps with the uploads, and returns when all of them are finished. Throws errors of the request. If there can be
/// any, does not read: a read that takes long could not be interrupted.
void Cache::wait_for(const Uploads& uploads, Worker& worker, const Request& request) {
    const bool helps = !is_limited(request) || !readers_.have_threads();
    const auto help = [&](Upload& upload) {
        if (!helps || !upload.submitted) return;
        while (is_wanted(request) && readers_.help(upload, worker)) {
        }
    };
    for (const auto& upload : uploads) help(*upload);
    for (const auto& upload : uploads) {
        Lock lock(mutex_);
        while (!upload->finished) {
            require_wanted(request);
            if (upload->waits_for_help) {
                // Claimed under the lock, so that no other thread gets its memory, too, or ends it.
                upload->waits_for_help = false;
                upload->providing = true;
                lock.unlock();
                prepare(upload, helps, request);
                lock.lock();
                continue;
            }
            // An upload that another thread began may have been submitted only now.
            if (helps && upload->submitted && readers_.has_jobs(*upload)) {
                lock.unlock();
                help(*upload);
                lock.lock();
            } else {
                wait_for_change(lock, request);
            }
        }
    }
}

/// Waits until something arrived, failed or left, or until the request has to be looked at again.
void Cache::wait_for_change(Lock& lock, const Request& request) {
    if (is_limited(request)) changed_.wait_until(lock, next_look(request));
    else changed_.wait(lock);
}

/// Holds a bundle of which nobody has a handle.
void Cache::keep(const std::shared_ptr<const BundleData>& bundle) {
    if (bundle->groups.empty() || stopping_) return;
    const Group* const group = bundle->own != nullptr ? bundle->own : bundle->groups.front().get();
    Bundles& kept = kept_[group];
    if (std::ranges::find(kept, bundle) == kept.end()) kept.push_back(bundle);
}

void Cache::refuse(const BundleData& bundle) const {
    const std::uint64_t needed = bundle.device_bytes;
    std::string text = bytes_text(needed) + " needed at once, ";
    if (needed <= residency_.budget()) text += bytes_text(residency_.leased()) + " already leased, ";
    std::uint64_t elsewhere = 0;
    for (const Cache* const other : budget_->caches)
        if (other != this) elsewhere += other->residency_.leased();
    if (elsewhere > 0) text += bytes_text(elsewhere) + " leased by other uploaders, ";
    text += "but the budget is " + bytes_text(residency_.budget());
    if (elsewhere > 0) text += " of the " + bytes_text(budget_->claimed.limit) + " that they share";
    Error error(Errc::budget_exceeded, text);
    if (bundle.tensors.size() == 1) error.with_tensor(bundle.tensors.front().name());
    throw error;
}

}  // namespace safemap::SAFEMAP_ABI::device
