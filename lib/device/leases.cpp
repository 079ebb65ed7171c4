// Leases bundles: in one step if everything is resident, otherwise under the lock. Orders leases, copies and the work
// of callers.
//
// A group is absent, arriving or resident. An acquire leases all groups of its bundle, whatever their state, and then
// claims room for all absent ones in one step: free bytes, the memory of residents that nobody leases, and that of
// prefetches that nobody waits for. If that is not enough, leases hold too much, and it is refused. Otherwise nothing
// that others do can take the room away again, so the acquire waits only for what is already moving: it gets memory,
// reads jobs of its own groups like any reader, and sleeps only if other threads have the last of these jobs in hand.
// A request does the same in two halves, and leaves the reading between them to others.
//
// A lease comes after the copies that brought its tensors, and memory is written again after the work that used it. A
// stream of the caller waits on the device, the host does not.
#include "device/cache.hpp"
#include "device/stopwatch.hpp"

#include "base/text.hpp"
#include "base/watch.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

void await(const DeviceEvent& event, const Request& request) {
    while (!event.wait_until(next_look(request))) require_wanted(request);
}

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
            if (group->word.state() != State::absent) bundle_.view->cache->ledger_.hit(*group);
        }
        held_ = true;
    }
    /// Ends them while the cache is locked: nothing else follows from it.
    void end_under_lock() noexcept {
        for (const auto& group : bundle_.groups) group->word.release();
        held_ = false;
    }
    void end() noexcept {
        if (std::exchange(held_, false)) bundle_.view->cache->end_leases(bundle_);
    }
    void pass_on() noexcept { held_ = false; }

private:
    const BundleData& bundle_;
    bool held_;
};

/// The progress of the uploads of a bundle, for the monitor of a request.
class Cache::Report {
public:
    Report(const BundleData& bundle, const Request& request, const Uploads& uploads)
        : watch_(request.monitor, "uploading", bundle.device_bytes), total_(bundle.device_bytes), uploads_(uploads) {
        watch_.begin_at(done());
    }

    bool is_due() const noexcept { return watch_.is_due(); }
    /// Reports; without the lock of the cache. Throws as Watch.
    void tell() {
        watch_.set(done());
        watch_.tell();
    }

private:
    std::uint64_t done() const noexcept {
        std::uint64_t left = 0;
        for (const auto& upload : uploads_) left += upload->left.load(std::memory_order_relaxed);
        return total_ - std::min(left, total_);
    }

    Watch watch_;
    const std::uint64_t total_;
    const Uploads& uploads_;
};

bool Cache::try_lease(const BundleData& bundle) noexcept {
    const auto end = bundle.groups.end();
    for (auto group = bundle.groups.begin(); group != end; ++group) {
        if ((*group)->word.try_lease()) continue;
        while (group != bundle.groups.begin()) (*--group)->word.release();
        return false;
    }
    const Cache& cache = *bundle.view->cache;
    const std::uint64_t time = cache.now();  // later than the last acquire of absent groups: so is this lease
    for (const auto& group : bundle.groups) {
        // Not stored without need: other leases of this group read it.
        if (group->used.load(std::memory_order_relaxed) != time) group->used.store(time, std::memory_order_relaxed);
        cache.ledger_.hit(*group);
    }
    return true;
}

void Cache::lease(const BundleData& bundle, const Request& request) {
    start(*bundle.view);
    const Stopwatch stopwatch(bundle.view->stalled);
    auto worker = readers_->borrow_worker();
    const std::optional<Uploads> uploads = begin_lease(bundle, request, worker.get());
    end_wait(bundle, request, *uploads, *worker);
    readers_->give_back(std::move(worker));
}

std::optional<Uploads> Cache::try_request(const BundleData& bundle, const Request& request) {
    if (bundle.view->stopped) throw_stopped();
    if (try_lease(bundle)) {
        if (bundle.view->follows) reached(bundle);
        return Uploads();
    }
    start(*bundle.view);
    return begin_lease(bundle, request, nullptr);
}

void Cache::end_request(const BundleData& bundle, const Request& request, const Uploads& uploads) {
    if (uploads.empty()) return;
    require_own_process();
    Leases leases(bundle, true);
    if (bundle.view->stopped) throw_stopped();
    const Stopwatch stopwatch(bundle.view->stalled);
    auto worker = readers_->borrow_worker();
    leases.pass_on();
    end_wait(bundle, request, uploads, *worker);
    readers_->give_back(std::move(worker));
}

void Cache::cancel_request(const BundleData& bundle, const Uploads& uploads) noexcept {
    if (is_forked()) return;
    end_leases(bundle);
    abandon(uploads);
}

bool Cache::are_over(const Uploads& uploads) const noexcept {
    if (is_forked()) return true;  // wait() throws
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(uploads, [](const auto& upload) { return upload->finished; });
}

void Cache::help_without_readers(const BundleData& bundle) {
    if (started_.load(std::memory_order_acquire) != count_forks() || readers_->have_threads()) return;
    std::shared_ptr<Upload> upload;
    bool prepares = false;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& group : bundle.groups)
            if (!upload && group->word.state() == State::arriving) upload = group->upload;
        if (!upload) return;
        prepares = upload->claim();
        if (!prepares && !upload->submitted) return;  // somebody is getting its memory
    }
    // Only what needs no wait.
    if (prepares) return prepare(upload, false, {.deadline = std::chrono::steady_clock::now()});
    auto worker = readers_->borrow_worker();
    readers_->help(*upload, *worker);
    readers_->give_back(std::move(worker));
}

/// Leases all groups, and begins the uploads of those that are absent. Returns all uploads that the lease waits for.
/// Throws budget_exceeded, the fault of a prefetch, and errors of the request; then nothing is leased. Without a
/// worker, never waits, and leaves it to readers to get memory; returns nothing, and leases nothing, if it had to wait.
std::optional<Uploads> Cache::begin_lease(const BundleData& bundle, const Request& request, Worker* worker) {
    Trash trash;
    Leases leases(bundle);
    Uploads uploads;

    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    Lock lock(mutex_);
    View& view = *bundle.view;
    const std::uint64_t time = time_ += 2;
    leases.take(time);
    Uploads begun;
    for (;;) {
        if (view.stopping) throw_stopped();
        require_wanted(request);
        const std::optional<Groups> absent = join_arriving(lock, bundle, request, worker, uploads);
        if (absent) {
            uploads.reserve(uploads.size() + absent->size());
            begun = begin(view, *absent, {.since = now()}, trash);
            if (begun.size() == absent->size()) break;
        }
        const bool is_refused = absent && !is_small_on_its_way();  // asked while everything is leased
        if (is_refused || worker == nullptr) leases.end_under_lock();
        if (is_refused) refuse(bundle);
        if (worker == nullptr) return std::nullopt;
        await_small(lock, request, *worker);
    }
    for (const auto& upload : begun) upload->priority = request.priority;
    Uploads ahead;  // uploads that the plan needs next
    pass(bundle);
    advance(view, ahead);
    lock.unlock();

    trash.clear();
    if (worker == nullptr) let_readers_prepare(begun);
    else
        for (const auto& upload : begun) prepare(upload, !is_limited(request), request);
    uploads.insert(uploads.end(), begun.begin(), begun.end());
    let_readers_prepare(ahead);
    leases.pass_on();
    return uploads;
}

/// Waits for the uploads of a lease that was begun. Throws their faults, and errors of the request; then nothing is
/// leased.
void Cache::end_wait(const BundleData& bundle, const Request& request, const Uploads& uploads, Worker& worker) {
    Leases leases(bundle, true);
    Report report(bundle, request, uploads);
    try {
        wait_for(uploads, worker, request, &report);
        require_arrived(uploads);
        if (!uploads.empty()) report.tell();
    } catch (...) {
        leases.end();
        const bool is_late = !is_wanted(request) && !request.monitor.stop.stop_requested();
        if (!is_late) abandon(uploads);
        throw;
    }
    leases.pass_on();
}

/// Throws the fault of an upload that is over and did not arrive.
void Cache::require_arrived(const Uploads& uploads) const {
    const std::lock_guard lock(mutex_);
    for (const auto& upload : uploads) {
        if (upload->cancelled) throw_stopped();
        if (upload->fault) throw_copy(upload->fault);
    }
}

/// Cancels the uploads that nobody wants any more.
void Cache::abandon(const Uploads& uploads) noexcept {
    Trash trash;
    const std::lock_guard lock(mutex_);
    for (const auto& upload : uploads)
        if (!upload->finished && is_idle(*upload, false)) cancel(*upload, trash);
}

/// Returns the groups that are absent. Adds the uploads of arriving groups to `uploads`, and gives them priority. If an
/// absent group needs a slot into which another one is on its way, waits until that has arrived; without a worker,
/// returns nothing. Throws the fault of a prefetch.
std::optional<Groups> Cache::join_arriving(Lock& lock, const BundleData& bundle, const Request& request, Worker* worker,
                                           Uploads& uploads) {
    for (;;) {
        Groups absent;
        uploads.clear();
        for (const auto& group : bundle.groups) {
            if (group->word.state() == State::arriving) {
                hurry(group->upload, request);
                uploads.push_back(group->upload);
            } else if (group->word.state() == State::absent) {
                if (const auto fault = std::exchange(group->fault, nullptr)) throw_copy(fault);
                absent.push_back(group);
            }
        }
        const auto busy = in_the_way(absent);
        if (!busy) return absent;
        hurry(busy, request);
        if (worker == nullptr) return std::nullopt;
        lock.unlock();
        wait_for({busy}, *worker, request);  // helps: there may be no other reader
        lock.lock();
    }
}

/// Helps with the uploads, and returns when all of them are finished. Throws errors of the request. If there can be
/// any, does not read: a read that takes long could not be interrupted.
void Cache::wait_for(const Uploads& uploads, Worker& worker, const Request& request, Report* report) {
    const bool helps = !is_limited(request) || !readers_->have_threads();
    const auto is_due = [&] { return report != nullptr && report->is_due(); };
    const auto help = [&](Upload& upload) {
        if (!helps || !upload.submitted) return;
        while (is_wanted(request) && readers_->help(upload, worker))
            if (is_due()) report->tell();
    };
    for (const auto& upload : uploads) help(*upload);
    for (const auto& upload : uploads) {
        Lock lock(mutex_);
        while (!upload->finished) {
            require_wanted(request);
            if (is_due()) {
                lock.unlock();
                report->tell();
                lock.lock();
                continue;
            }
            if (upload->claim()) {
                lock.unlock();
                prepare(upload, helps, request);
                lock.lock();
                continue;
            }
            // An upload that another thread began may have been submitted only now.
            if (helps && upload->submitted && readers_->has_jobs(*upload)) {
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
    const Deadline next = next_look(request);
    if (next == Deadline::max()) changed_.wait(lock);
    else changed_.wait_until(lock, next);
}

void Cache::refuse(const BundleData& bundle) const {
    const Account& account = bundle.view->account;
    const std::uint64_t needed = bundle.device_bytes;
    std::string text = bytes_text(needed) + " needed at once, ";
    if (account.granularity > 0) text += "in multiples of " + bytes_text(account.granularity) + ", ";
    if (needed <= account.cap) text += bytes_text(ledger_.leased(account)) + " already leased, ";
    const std::uint64_t elsewhere = ledger_.leased(account, true);
    if (elsewhere > 0) text += bytes_text(elsewhere) + " leased by other uploaders, ";
    text += "but the budget is " + bytes_text(account.cap);
    if (elsewhere > 0) text += " of the " + bytes_text(ledger_.budget()) + " that they share";
    Error error(Errc::budget_exceeded, text);
    if (bundle.tensors.size() == 1) error.with_tensor(bundle.tensors.front().name());
    throw error;
}

// Order.

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
    require_own_process();  // the copies are of the other one, and so is who might have the lock
    bool all_done = true;
    const auto fault = fault_of(group.layout, [&] {
        for (const Fence& fence : group.on_device->ready) {
            if (fence.event->done()) continue;
            if (stream) {
                all_done = false;
                device_->make_wait(stream, *fence.event);
            } else {
                const Stopwatch stopwatch(group.view->stalled);
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
        return !group->pending.load(std::memory_order_acquire) || group->view->cache->is_forked() ||
               are_done(group->on_device->ready);
    };
    return std::ranges::all_of(bundle.groups, is_done);
}

bool Cache::use(const BundleData& bundle, NativeStream stream) noexcept {
    if (lost_.load(std::memory_order_relaxed)) return true;  // it is never written again
    if (is_forked()) return false;
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
        drop_done(group->on_device->uses);
        add(group->on_device->uses, {event, stream});
    }
}

/// Keeps the groups of a bundle leased until stop(), even if nobody has a handle of the bundle any more.
void Cache::hold(const BundleData& bundle) noexcept {
    if (is_forked()) return;
    const std::lock_guard lock(mutex_);
    if (bundle.view->stopping) return;
    for (const auto& group : bundle.groups) group->on_device->self = group;
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
    if (is_forked()) return;
    if (frees_slot && bundle.view->follows) go_on(*bundle.view);
    if (bundle.view->stopped) free_unleased(bundle);
}

/// Frees the groups of a lease that outlived the uploader.
void Cache::free_unleased(const BundleData& bundle) noexcept {
    Lock lock(mutex_);
    for (const auto& group : bundle.groups)
        if (Space space = evict(*group)) free(lock, std::move(space));
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
    require_own_process();
    std::exception_ptr failure;
    {
        const std::lock_guard lock(mutex_);
        failure = failure_;
    }
    throw_copy(failure);
}

}  // namespace safemap::SAFEMAP_ABI::device
