// Brings groups of tensors to a device under a budget. Here: bundles, whose tensors have owners; prefetching and
// evicting. The other files: cache_lease.cpp leases bundles, cache_order.cpp orders leases and copies, cache_room.cpp
// makes room under the budget, cache_memory.cpp gets device memory, cache_plan.cpp follows plans, cache_fill.cpp fills
// memory of the caller; cache_end.cpp has arrivals, sleep, and the end of groups and of the cache.
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

// Tiles of transposed tensors pass through a buffer of each reader, so they are smaller than jobs.
constexpr std::uint64_t tile_bytes = 2_MiB;

std::uint64_t choose_budget(const Budget& of_device, const UploadOptions& options) {
    const std::uint64_t all = of_device.claimed.limit;
    return options.device_budget > 0 ? std::min(options.device_budget, all) : all;
}

DeviceBudgetOptions own_budget(const UploadOptions& options) {
    return {.device_bytes = options.device_budget, .staging_bytes = options.staging_bytes};
}

}  // namespace

Cache::Cache(std::shared_ptr<Budget> budget, const UploadOptions& options, Readers& readers, const PathRules& rules)
    : budget_(std::move(budget)),
      device_(budget_->device),
      readers_(readers),
      staging_(budget_->staging),
      paths_(options.direct_reads ? rules : PathRules::without_direct()),
      mutex_(budget_->mutex),
      changed_(budget_->changed),
      residency_(choose_budget(*budget_, options), &budget_->claimed),
      heap_(residency_.budget(), &budget_->allocated),
      sizes_{.job = staging_.buffer_bytes(),
             .tile = std::min(tile_bytes, staging_.buffer_bytes()),
             .most = residency_.budget()} {
    readers_.expect(thread_count(options.readers, is_cuda(*device_) ? gpu_uploading_threads : uploading_threads));
}

Cache::Cache(std::shared_ptr<Device> device, const UploadOptions& options, Readers& readers, const PathRules& rules)
    : Cache(std::make_shared<Budget>(std::move(device), own_budget(options)), options, readers, rules) {}

Cache::~Cache() {
    Lock lock(mutex_);
    std::erase(budget_->caches, this);
    // Another thread may have kept memory here that it could not free in time.
    free_kept(lock);
    // The rest is memory of a device that failed.
    budget_->claimed.subtract(residency_.claimed());
    budget_->allocated.subtract(heap_.total());
}

UploadStats Cache::stats() const {
    const std::lock_guard lock(mutex_);
    UploadStats stats = stats_;
    stats.resident_bytes = residency_.resident();
    stats.peak_device_bytes = heap_.peak();
    stats.peak_staging_bytes = staging_.peak();
    stats.stalled = std::chrono::nanoseconds(stalled_);
    paths_.report(stats);
    return stats;
}

/// Lets the other caches of the budget know this one, before it has any memory. Not in the constructor: they need a
/// shared_ptr.
void Cache::join() {
    if (joined_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    if (!joined_.exchange(true)) budget_->caches.push_back(this);
}

std::shared_ptr<const BundleData> Cache::bundle(std::vector<LazyTensor> tensors) {
    join();
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
    // First, so that groups of this call are not evicted to make room for others of this call.
    for (const auto& bundle : bundles)
        for (const auto& group : bundle->groups) group->announced = time;
    for (const auto& bundle : bundles) {
        Groups absent;
        for (const auto& group : bundle->groups)
            if (group->word.state() == State::absent && !group->fault && !group->word.leased()) absent.push_back(group);
        if (absent.empty()) continue;
        begun.reserve(begun.size() + absent.size());
        const Uploads uploads = begin(absent, {.since = time - 1, .demanded = false}, false, trash);
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
