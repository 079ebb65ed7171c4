// The cache of a device, and the views that uploaders have of it: bundles, prefetching and evicting, sleep, and the end
// of groups and of views.
#include "device/cache.hpp"

#include "base/checked.hpp"
#include "base/pool.hpp"

#include <safemap/device_budget.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace device {
namespace {

// Tiles of transposed tensors pass through a buffer of each reader, so they are smaller than jobs.
constexpr std::uint64_t largest_tile = 2_MiB;

// With jobs of this size, two threads that claim them reach the disk's limit. Loaders for GPUs converge on such sizes,
// too (4 to 16 MiB).
constexpr std::uint64_t most_slab = 8_MiB;
constexpr std::uint64_t least_staging = 4_KiB;
constexpr std::uint64_t staging_for_others = 32_MiB;

// Slabs that are read into again and again have to stay in the cache of the processor, or the memory is the limit, and
// not the bus. Twelve readers and an H100 came to 50 GB/s with two slabs of 4 MiB each, and to 38 with 8 MiB; its bus
// copies 53.
constexpr std::uint64_t slab_for_cuda = 4_MiB;
constexpr std::uint64_t staging_for_cuda = 128_MiB;

/// Returns true for the devices of CUDA, which have a bus that is as fast as many readers.
bool is_cuda(const Device& device) noexcept { return device.stream_kind() == NativeStream::Kind::cuda; }

// A group of more tensors is prepared for its upload when it is made.
constexpr std::size_t many_tensors = 64;

std::uint64_t choose_staging(const Device& device, const DeviceBudgetOptions& options) {
    if (options.staging_bytes == 0) return is_cuda(device) ? staging_for_cuda : staging_for_others;
    if (options.staging_bytes >= least_staging) return options.staging_bytes;
    throw Error(Errc::invalid_argument, "staging_bytes is " + std::to_string(options.staging_bytes) +
                                            "; expected at least " + std::to_string(least_staging));
}

std::uint64_t slab_bytes(const Device& device, const DeviceBudgetOptions& options) {
    return std::min(is_cuda(device) ? slab_for_cuda : most_slab, choose_staging(device, options));
}

std::uint64_t choose_budget(const Device& device, const DeviceBudgetOptions& options) {
    return options.device_bytes > 0 ? options.device_bytes : device.free_memory() / 10 * 9;
}

std::uint64_t choose_cap(const Cache& cache, const UploadOptions& options) {
    return options.device_budget > 0 ? std::min(options.device_budget, cache.budget()) : cache.budget();
}

/// Throws invalid_argument if addresses have to stay, and the device cannot keep them.
std::uint64_t choose_granularity(const Cache& cache, const UploadOptions& options) {
    return options.keep_addresses ? cache.device()->reserve(1)->size() : 0;
}

}  // namespace

Cache::Cache(std::shared_ptr<Device> device, const DeviceBudgetOptions& options, std::shared_ptr<Readers> readers)
    : device_(std::move(device)),
      readers_(std::move(readers)),
      staging_(device_, slab_bytes(*device_, options),
               choose_staging(*device_, options) / slab_bytes(*device_, options)),
      ledger_(choose_budget(*device_, options)),
      heap_(ledger_.budget()),
      tier_(options.host_bytes) {}

std::shared_ptr<Cache> Cache::make(std::shared_ptr<Device> device, const DeviceBudgetOptions& options,
                                   std::shared_ptr<Readers> readers) {
    if (!device) throw Error(Errc::invalid_argument, "there is no device");
    const auto end = [](const Cache* cache) {
        if (!cache->is_forked()) delete cache;
    };
    return {new Cache(std::move(device), options, std::move(readers)), end};
}

Cache::~Cache() = default;

void Cache::require_own_process() const {
    if (!is_forked()) return;
    throw Error(Errc::invalid_argument, "the uploader is of the process that this one was forked from")
        .with_hint("make uploaders after fork(), in the process that uses them");
}

/// Begins with the first call that may upload. Until then there are no threads, so a process that is forked has the
/// cache, too. Throws invalid_argument in a process that was forked later.
void Cache::start(const View& view) {
    require_own_process();
    std::call_once(once_, [this] {
        if (!readers_) readers_ = Readers::of_process();
        started_ = count_forks();
    });
    readers_->expect(view.readers);
}

// Views.

View::View(std::shared_ptr<Cache> of, const UploadOptions& options, const PathRules& rules)
    : cache(std::move(of)),
      account(choose_cap(*cache, options), choose_granularity(*cache, options)),
      sizes{.job = cache->staging_.buffer_bytes(),
            .tile = std::min(largest_tile, cache->staging_.buffer_bytes()),
            .most = account.cap},
      readers(thread_count(options.readers, is_cuda(*cache->device()) ? gpu_uploading_threads : uploading_threads)),
      on_arrival(options.on_arrival),
      paths(options.direct_reads ? rules : PathRules::without_direct()) {}

View::~View() { cache->close(*this); }

std::shared_ptr<View> Cache::view(const UploadOptions& options, const PathRules& rules) {
    require_own_process();
    return std::make_shared<View>(shared_from_this(), options, rules);
}

std::shared_ptr<const BundleData> Cache::bundle(const std::shared_ptr<View>& view, std::vector<LazyTensor> tensors) {
    view->cache->require_own_process();
    const auto data = std::make_shared<BundleData>();
    data->view = view;
    data->tensors.reserve(tensors.size());
    const auto places = view->owners.own(view, tensors);
    std::unordered_set<const Group*> seen;
    for (std::size_t i = 0; i < places.size(); ++i) {
        const auto& [group, number, moved] = places[i];
        if ((data->groups.empty() || data->groups.back() != group) && seen.insert(group.get()).second) {
            data->groups.push_back(group);
            data->device_bytes =
                checked_add(data->device_bytes, group->layout.size).value_or(std::numeric_limits<std::uint64_t>::max());
        }
        const LazyTensor* tensor = &group->layout.tensors[number];
        if (!moved && tensors[i].name() != tensor->name()) tensor = &data->renamed.emplace_front(std::move(tensors[i]));
        data->tensors.push_back(DeviceTensor(*tensor, *group, group->layout.places[number]));
    }
    return data;
}

UploadStats Cache::stats(const View& view) const {
    require_own_process();
    const std::lock_guard lock(mutex_);
    UploadStats stats;
    stats.uploaded_bytes = view.uploaded_bytes;
    stats.bytes_from_host = view.bytes_from_host;
    stats.evictions = view.evictions;
    stats.resident_bytes = ledger_.resident(view.account);
    stats.peak_device_bytes = view.account.peak;
    stats.peak_staging_bytes = staging_.peak();
    stats.stalled = std::chrono::nanoseconds(view.stalled);
    view.paths.report(stats);
    return stats;
}

DeviceBudgetStats Cache::stats() const {
    require_own_process();
    const std::lock_guard lock(mutex_);
    return {.device_bytes = heap_.total(),
            .peak_device_bytes = heap_.peak(),
            .peak_staging_bytes = staging_.peak(),
            .host_bytes = tier_.bytes(),
            .peak_host_bytes = tier_.peak()};
}

// Prefetching and evicting.

void Cache::prefetch(View& view, const Bundles& bundles) {
    start(view);
    Uploads begun;
    std::exception_ptr fault;
    try {
        begin_prefetches(view, bundles, begun);
    } catch (...) {
        fault = std::current_exception();
    }
    let_readers_prepare(begun);
    if (fault) std::rethrow_exception(fault);
}

void Cache::begin_prefetches(View& view, const Bundles& bundles, Uploads& begun) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t time = time_ += 2;
    // First, so that groups of this call are not evicted to make room for others of this call.
    for (const auto& bundle : bundles)
        for (const auto& group : bundle->groups) group->announced = time;
    for (const auto& bundle : bundles) {
        Groups absent;
        for (const auto& group : bundle->groups)
            if (group->word.state() == State::absent && !group->fault && !group->word.leased()) absent.push_back(group);
        if (!absent.empty()) begin_ahead(view, absent, time - 1, begun);
    }
}

void Cache::evict(View& view, std::span<const std::shared_ptr<Group>> groups) {
    require_own_process();
    Lock lock(mutex_);
    for (const auto& group : groups)
        if (Space space = evict(*group)) free(lock, std::move(space));
    free_kept(lock, view.account);
}

// Sleep.

std::uint64_t Cache::sleep(View& view) {
    start(view);
    Trash trash;
    Lock lock(mutex_);
    const bool was_sleeping = std::exchange(view.sleeping, true);  // nothing begins meanwhile
    cancel_if(lock, view, trash, [](const Upload& upload) { return !upload.group->word.leased(); });
    std::size_t count = view.asleep.size();
    for (const auto& holding : ledger_.holdings()) count += holding->groups.size();
    try {
        view.asleep.reserve(count);
    } catch (...) {
        view.sleeping = was_sleeping;
        throw;
    }
    // Each owner that is taken here is kept: the last one must not be destroyed under the lock.
    for (const auto& holding : ledger_.holdings())
        for (Group* const group : holding->groups) {
            if (holding->account != &view.account || group->word.leased()) continue;
            if (auto shared = group->weak_from_this().lock()) view.asleep.push_back(std::move(shared));
        }
    std::ranges::sort(view.asleep, {}, &Group::number);
    // Some were taken by the sleep before, and acquired meanwhile.
    view.asleep.erase(std::unique(view.asleep.begin(), view.asleep.end()), view.asleep.end());
    if (view.account.granularity > 0) ledger_.keep_places(view.account);
    evict_all(lock, view);
    std::erase_if(view.account.places, [](const auto& one) { return one.first->word.state() == State::resident; });
    return view.account.allocated;
}

void Cache::wake(View& view) {
    start(view);
    Uploads begun;
    Groups asleep;
    std::exception_ptr fault;
    {
        const std::lock_guard lock(mutex_);
        view.sleeping = false;
        asleep.swap(view.asleep);
        advance(view, begun);
        try {
            begin_asleep(view, asleep, begun);
        } catch (...) {
            fault = std::current_exception();
        }
    }
    let_readers_prepare(begun);
    if (fault) std::rethrow_exception(fault);
}

/// Begins to bring back what sleep() took. What shares a slot comes when the plan needs it.
void Cache::begin_asleep(View& view, const Groups& asleep, Uploads& begun) {
    for (const auto& group : asleep) {
        if (group->slot != no_slot || group->word.state() != State::absent) continue;
        if (group->fault || group->word.leased()) continue;
        begin_ahead(view, {group}, 0, begun);
    }
}

// Ends.

/// Cancels the uploads of a view that `which` returns true for, and waits until they are over.
void Cache::cancel_if(Lock& lock, const View& view, Trash& trash, const std::function<bool(const Upload&)>& which) {
    for (auto at = uploads_.begin(); at != uploads_.end();) {
        Upload& upload = **at++;  // cancel() may remove it
        if (upload.group->view.get() == &view && !upload.cancelled && which(upload)) cancel(upload, trash);
    }
    lock.unlock();
    trash.clear();
    lock.lock();
    const auto is_going = [&](const Upload* upload) { return upload->cancelled && upload->group->view.get() == &view; };
    changed_.wait(lock, [&] { return std::ranges::none_of(uploads_, is_going); });
}

/// Frees everything of a view that is not leased, and waits until it is free.
void Cache::evict_all(Lock& lock, View& view) noexcept {
    for (std::size_t i = 0; i < ledger_.holdings().size();) {
        Holding& holding = *ledger_.holdings()[i];
        if (holding.account == &view.account && Ledger::try_reserve(holding)) evict(holding);  // moves another
        else ++i;
    }
    free_kept(lock, view.account);
    // A thread that needs room may be freeing some of it, and keeps that if it gives up.
    while (view.account.freeing > 0) {
        changed_.wait(lock);
        free_kept(lock, view.account);
    }
}

void Cache::stop(View& view) noexcept {
    if (is_forked()) return;
    Groups asleep;
    std::shared_ptr<Plan> plan;
    decltype(Account::places) places;
    std::shared_ptr<Group> held;  // chained by OnDevice::self
    Trash trash;
    Lock lock(mutex_);
    view.stopping = true;
    view.follows = false;
    plan.swap(view.plan);
    asleep.swap(view.asleep);
    cancel_if(lock, view, trash, [](const Upload&) { return true; });
    if (plan) end_slots(view, *plan);  // so that their memory is freed, that of leases when these end
    view.stopped = true;
    places.swap(view.account.places);
    for (const auto& holding : ledger_.holdings())
        for (Group* const group : holding->groups)
            if (holding->account == &view.account && group->on_device->self) std::swap(group->on_device->self, held);
    tier_.end(view);
    evict_all(lock, view);
    // Threads that have ended an upload may still hold its group, and with it the view.
    changed_.wait(lock, [&] { return view.working == 0; });
    evict_all(lock, view);
    lock.unlock();
    while (held) held = std::exchange(held->on_device->self, nullptr);
}

/// Takes the memory back of a group that nobody knows any more.
void Cache::forget(Group& group) noexcept {
    if (is_forked()) return;
    group.view->owners.forget(group);
    decltype(Account::places)::node_type place;  // its end may free memory
    Lock lock(mutex_);
    tier_.forget(group);
    place = group.view->account.places.extract(&group);
    if (group.holding == nullptr) return ledger_.forget(group);
    Holding* const empty = ledger_.take_out(group);
    ledger_.forget(group);
    if (empty == nullptr) return;
    Space space = ledger_.remove(*empty);
    if (group.view->stopping && space) free(lock, std::move(space));
    else if (space) heap_.keep(std::move(space));
    changed_.notify_all();
}

/// Takes back what a view has left when nobody knows it any more: slots without a group.
void Cache::close(View& view) noexcept {
    if (is_forked()) return;
    Lock lock(mutex_);
    evict_all(lock, view);
}

void Cache::Trash::add(std::shared_ptr<Upload> upload) noexcept {
    upload->next_cancelled = std::move(first);
    first = std::move(upload);
}

void Cache::Trash::clear() noexcept {
    while (const auto upload = std::move(first)) {
        first = std::move(upload->next_cancelled);
        if (upload->rest == Upload::Rest::copies) upload->finish();
        else if (upload->rest == Upload::Rest::group) upload->group.reset();
    }
}

Group::Group(std::shared_ptr<View> owner, std::uint64_t order, Layout arranged)
    : view(std::move(owner)), number(order), layout(std::move(arranged)) {
    // Under the lock of the cache, this would take too long.
    if (layout.tensors.size() > many_tensors) prepare(view->sizes);
}

Group::~Group() {
    if (view) view->cache->forget(*this);
}

}  // namespace device

DeviceBudget::DeviceBudget(std::shared_ptr<Device> device, const DeviceBudgetOptions& options)
    : cache_(device::Cache::make(std::move(device), options)) {}

const std::shared_ptr<Device>& DeviceBudget::device() const noexcept { return cache_->device(); }

std::uint64_t DeviceBudget::device_bytes() const noexcept { return cache_->budget(); }

DeviceBudgetStats DeviceBudget::stats() const { return cache_->stats(); }

}  // namespace safemap::SAFEMAP_ABI
