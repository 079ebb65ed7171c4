// Brings groups of tensors to a device under a budget, and leases them. From top to bottom:
//   - bundle(): owners of tensors, and a group for those that have none.
//   - Leasing: in one step if everything is resident; otherwise under the lock.
//   - Prefetching and evicting.
// cache_room.cpp makes room under the budget, and gets device memory; cache_plan.cpp follows plans; cache_end.cpp has
// arrivals, sleep, and the end of groups and of the cache.
//
// A group is absent, arriving or resident. An acquire leases all groups of its bundle, whatever their state, and then
// claims room for all absent ones in one step: free bytes, the memory of residents that nobody leases, and that of
// prefetches that nobody waits for. If that is not enough, leases hold too much, and it is refused. Otherwise nothing
// that others do can take the room away again, so the acquire waits only for what is already moving: it gets memory,
// reads jobs of its own groups like any reader, and sleeps only if other threads have the last of these jobs in hand.
#include "device/cache.hpp"

#include "base/checked.hpp"
#include "base/pool.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// With jobs of this size, two threads that claim them reach the disk's limit. Loaders for GPUs converge on such sizes,
// too (4 to 16 MiB).
constexpr std::uint64_t job_bytes = 8_MiB;
// Tiles of transposed tensors pass through a buffer of each reader, so they are smaller.
constexpr std::uint64_t tile_bytes = 2_MiB;
constexpr std::uint64_t least_staging = 4_KiB;

std::uint64_t choose_budget(const Device& device, const UploadOptions& options) {
    if (options.device_budget > 0) return options.device_budget;
    return device.free_memory() / 10 * 9;
}

std::uint64_t choose_staging(const UploadOptions& options) {
    if (options.staging_bytes >= least_staging) return options.staging_bytes;
    throw Error(Errc::invalid_argument, "staging_bytes is " + std::to_string(options.staging_bytes) +
                                            "; expected at least " + std::to_string(least_staging));
}

std::uint64_t slab_bytes(const UploadOptions& options) { return std::min(job_bytes, choose_staging(options)); }

/// Throws a copy of `fault`. Each thread gets an Error of its own, to add context to.
[[noreturn]] void throw_copy(const std::exception_ptr& fault) {
    try {
        std::rethrow_exception(fault);
    } catch (const Error& error) {
        throw Error(error);
    }
}

/// Adds the time until it goes out of scope to a counter.
class Stopwatch {
public:
    explicit Stopwatch(std::atomic<std::int64_t>& nanoseconds) noexcept : sum_(nanoseconds) {}
    ~Stopwatch() { sum_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began_).count(); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

private:
    std::atomic<std::int64_t>& sum_;
    const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

/// The leases of an acquire, which end with it unless it succeeds.
class Cache::Leases {
public:
    explicit Leases(const BundleData& bundle) noexcept : bundle_(bundle) {}
    ~Leases() {
        if (held_) bundle_.cache->end_leases(bundle_);
    }
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
    void pass_on() noexcept { held_ = false; }

private:
    const BundleData& bundle_;
    bool held_ = false;
};

Cache::Cache(std::shared_ptr<Device> device, const UploadOptions& options, Readers& readers)
    : device_(std::move(device)),
      readers_(readers),
      staging_(device_, slab_bytes(options), choose_staging(options) / slab_bytes(options)),
      residency_(choose_budget(*device_, options)),
      heap_(residency_.budget()),
      sizes_{
          .job = slab_bytes(options), .tile = std::min(tile_bytes, slab_bytes(options)), .most = residency_.budget()} {
    readers_.expect(thread_count(options.readers, uploading_threads));
}

UploadStats Cache::stats() const {
    const std::lock_guard lock(mutex_);
    UploadStats stats = stats_;
    stats.resident_bytes = residency_.resident();
    stats.peak_device_bytes = heap_.peak();
    stats.peak_staging_bytes = staging_.allocated();
    stats.stalled = std::chrono::nanoseconds(stalled_);
    stats.bytes_pread = read_;
    return stats;
}

std::shared_ptr<const BundleData> Cache::bundle(std::vector<LazyTensor> tensors) {
    const auto data = std::make_shared<BundleData>();
    data->cache = shared_from_this();
    data->tensors.reserve(tensors.size());
    const auto places = owners_.own(*this, tensors, sizes_);
    std::unordered_set<const Group*> seen;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const auto& [group, number, made, moved] = places[i];
        if (made) data->own = group.get();
        if ((data->groups.empty() || data->groups.back() != group) && seen.insert(group.get()).second) {
            data->groups.push_back(group);
            data->device_bytes =
                checked_add(data->device_bytes, group->layout.size).value_or(std::numeric_limits<std::uint64_t>::max());
        }
        const LazyTensor* tensor = &group->layout.tensors[number];
        if (!moved && tensors[i].name() != tensor->name()) tensor = &data->renamed.emplace_back(std::move(tensors[i]));
        data->tensors.push_back(DeviceTensor(*tensor, *group, group->layout.places[number]));
    }
    return data;
}

// ---- Leasing

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

void Cache::order(const BundleData& bundle, NativeStream stream) {
    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    for (const auto& group : bundle.groups)
        if (group->pending.load(std::memory_order_acquire)) order(*group, stream);
}

/// Orders what comes next after the copies of a leased group, so `ready` does not change.
void Cache::order(Group& group, NativeStream stream) {
    bool all_done = true;
    const auto fault = fault_of(group.layout.tensors.front().name(), [&] {
        for (const Fence& fence : group.ready) {
            if (fence.event->done()) continue;
            if (stream) {
                all_done = false;
                device_->make_wait(stream, *fence.event);
            } else {
                const Stopwatch stopwatch(stalled_);
                fence.event->wait();
            }
        }
    });
    if (fault) {
        note_failure(fault);
        throw_copy(fault);
    }
    if (all_done) group.pending.store(false, std::memory_order_release);
}

bool Cache::can_order(NativeStream stream) const { return stream && !device_->is_capturing(stream); }

void Cache::release(const BundleData& bundle, NativeStream stream) noexcept {
    if (stream && !lost_.load(std::memory_order_relaxed)) {
        try {
            if (!can_order(stream)) return;
            remember_use(bundle, stream);
        } catch (const Error& error) {
            // If the device failed, nothing is in progress. Otherwise nobody knows when the memory is free.
            if (error.code() != Errc::device_failed) return;
            note_failure(std::current_exception());
        } catch (...) {
            return;
        }
    }
    end_leases(bundle);
}

/// Fences the memory of a bundle by the work that is in `stream` so far.
void Cache::remember_use(const BundleData& bundle, NativeStream stream) {
    const auto event = device_->record(stream);
    const std::lock_guard lock(mutex_);
    for (const auto& group : bundle.groups) {
        drop_done(group->uses);
        add(group->uses, {event, stream});
    }
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
    const Lock lock(mutex_);
    const std::exception_ptr failure = failure_;
    throw_copy(failure);
}

/// Frees the groups of a lease that outlived the uploader.
void Cache::free_unleased(const BundleData& bundle) noexcept {
    Trash trash;
    Lock lock(mutex_);
    for (const auto& group : bundle.groups)
        if (Space space = evict(*group, trash)) free(lock, std::move(space));
}

void Cache::lease(const std::shared_ptr<const BundleData>& bundle, Keep keep_it) {
    const Stopwatch stopwatch(stalled_);
    auto worker = readers_.borrow_worker();
    Trash trash;
    Leases leases(*bundle);
    Uploads uploads;  // uploads that this acquire waits for

    if (lost_.load(std::memory_order_relaxed)) throw_lost();
    Lock lock(mutex_);
    const std::uint64_t time = time_ += 2;
    leases.take(time);
    Groups absent;
    Uploads begun;
    do {
        absent = join_arriving(lock, *bundle, *worker, uploads, trash);
        uploads.reserve(uploads.size() + absent.size());
        begun = begin(absent, {}, true, trash);
    } while (begun.size() < absent.size() && await_small(lock, *worker));
    if (begun.size() < absent.size()) {
        leases.end_under_lock();
        refuse(*bundle);
    }
    Uploads ahead;  // uploads that the plan needs next
    pass(*bundle);
    advance(ahead, trash);
    lock.unlock();

    trash.clear();
    for (const auto& upload : begun) {
        prepare(upload, true);
        uploads.push_back(upload);
    }
    for (const auto& upload : ahead) prepare(upload, false);
    wait_for(uploads, *worker);
    readers_.give_back(std::move(worker));

    lock.lock();
    for (const auto& upload : uploads)
        if (upload->fault) throw_copy(upload->fault);
    if (keep_it == Keep::yes) keep(bundle);
    leases.pass_on();
}

/// Returns the groups that are absent. Adds the uploads of arriving groups to `uploads`, and gives them priority. If an
/// absent group needs a slot into which another one is on its way, waits until that has arrived. Throws the fault of a
/// prefetch.
Cache::Groups Cache::join_arriving(Lock& lock, const BundleData& bundle, Worker& worker, Uploads& uploads,
                                   Trash& trash) {
    for (;;) {
        Groups absent;
        uploads.clear();
        for (const auto& group : bundle.groups) {
            if (group->word.state() == State::arriving) {
                hurry(group->upload);
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
        hurry(busy);
        lock.unlock();
        wait_for({busy}, worker);  // helps: there may be no other reader
        lock.lock();
    }
}

/// Gives an upload priority.
void Cache::hurry(const std::shared_ptr<Upload>& upload) {
    if (!upload->demanded.exchange(true) && upload->submitted) readers_.submit(upload, Readers::Lane::demand);
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

/// Helps with the uploads, and returns when all of them are finished.
void Cache::wait_for(const Uploads& uploads, Worker& worker) {
    const auto help = [&](Upload& upload) {
        if (!upload.submitted) return;
        while (readers_.help(upload, worker)) {
        }
    };
    for (const auto& upload : uploads) help(*upload);
    for (const auto& upload : uploads) {
        Lock lock(mutex_);
        while (!upload->finished) {
            // An upload that another thread began may have been submitted only now.
            if (upload->submitted && readers_.has_jobs(*upload)) {
                lock.unlock();
                help(*upload);
                lock.lock();
            } else {
                changed_.wait(lock);
            }
        }
    }
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
    const std::uint64_t leased = residency_.leased();
    std::string text = bytes_text(needed) + " needed at once, ";
    if (needed <= residency_.budget()) text += bytes_text(leased) + " already leased, ";
    Error error(Errc::budget_exceeded, text + "but the budget is " + bytes_text(residency_.budget()));
    if (bundle.tensors.size() == 1) error.with_tensor(bundle.tensors.front().name());
    throw error;
}

// ---- Prefetching and evicting

void Cache::prefetch(std::span<const std::shared_ptr<const BundleData>> bundles, Keep keep_them) {
    Uploads begun;
    std::exception_ptr fault;
    try {
        begin_prefetches(bundles, keep_them, begun);
    } catch (...) {
        fault = std::current_exception();
    }
    for (const auto& upload : begun) prepare(upload, false);
    if (fault) std::rethrow_exception(fault);
}

void Cache::begin_prefetches(std::span<const std::shared_ptr<const BundleData>> bundles, Keep keep_them,
                             Uploads& begun) {
    Trash trash;
    const std::lock_guard lock(mutex_);
    const std::uint64_t time = time_ += 2;
    const std::uint64_t since = time - 1;
    // Groups of this call are not evicted to make room for others of this call.
    for (const auto& bundle : bundles)
        for (const auto& group : bundle->groups) group->used.store(time, std::memory_order_relaxed);
    for (const auto& bundle : bundles) {
        Groups absent;
        for (const auto& group : bundle->groups)
            if (group->word.state() == State::absent && !group->fault && !group->word.leased()) absent.push_back(group);
        if (absent.empty()) continue;
        begun.reserve(begun.size() + absent.size());
        const Uploads uploads = begin(absent, {.since = since, .planned = false}, false, trash);
        begun.insert(begun.end(), uploads.begin(), uploads.end());
        if (!uploads.empty() && keep_them == Keep::yes) keep(bundle);
    }
}

void Cache::evict(std::span<const std::shared_ptr<Group>> groups) {
    Trash trash;
    Lock lock(mutex_);
    for (const auto& group : groups)
        if (Space space = evict(*group, trash)) free(lock, std::move(space));
    free_kept(lock);
}

}  // namespace safemap::SAFEMAP_ABI::device
