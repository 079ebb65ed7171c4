// The cache of a device: brings groups of tensors to it under a budget, and leases them. Knows tensors, not
// checkpoints.
//
// There is one cache for a DeviceBudget. Each uploader has a view of it: its tensors, its share of the budget, its
// plan. The code stands by what it is about:
//   cache.cpp      views: their bundles, sleep and end
//   leases.cpp     leasing bundles, and the order of leases, copies and the work of callers
//   arrivals.cpp   groups on their way: room, memory, arrival, cancelling
//   orders.cpp     plans
// and, apart from the cache and without its lock, ledger.cpp (the arithmetic of the budget), host_tier.cpp (pictures in
// page-locked memory), fill.cpp (memory of the caller), readers.cpp (threads), staging.cpp (slabs).
//
// Locks. Cache::mutex_ guards all bookkeeping of the cache and its views. Under it, these are taken, never the other
// way round: the mutex of the readers (to queue and cancel tasks), that of the staging pool (never held while waiting),
// those of a device whose event is recorded, looked at or given back. Owners::mutex_ is taken by itself.
//
// A thread may wait for these things, while it holds these:
// - Nobody allocates or frees memory of a device or page-locked memory, reads, calls a hook or a monitor, or waits for
//   a copy while holding a mutex. The exception is Heap::keep(), if there is no memory for a node of its map.
// - A thread that waits for an arrival holds leases, at most one worker, and no slab.
// - A job that waits for a slab of the bulk lane does jobs of the demand lane meanwhile. One of the demand lane waits
//   only for copies that no work of a caller can hold up.
// - The end of a view waits for the jobs of its uploads that are running, and for memory that is being freed.
#pragma once

#include "base/forks.hpp"
#include "device/group.hpp"
#include "device/host_tier.hpp"
#include "device/ledger.hpp"
#include "device/owners.hpp"
#include "device/paths.hpp"
#include "device/plan.hpp"
#include "device/readers.hpp"
#include "device/request.hpp"
#include "device/staging.hpp"
#include "device/upload.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class FillTask;

using Bundles = std::vector<std::shared_ptr<const BundleData>>;
using Groups = std::vector<std::shared_ptr<Group>>;
using Uploads = std::vector<std::shared_ptr<Upload>>;

/// The share that one uploader has of a cache. Its groups hold it. The mutex of the cache guards the members that
/// change, but for `owners`, `paths` and the atomic ones.
struct View {
    View(std::shared_ptr<Cache> of, const UploadOptions& options, const PathRules& rules);
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    /// Lets leases tell the plan of them again: a group of it may not be there any more.
    void look_again() noexcept { follows = plan != nullptr; }

    const std::shared_ptr<Cache> cache;
    Account account;
    const FillSizes sizes;
    const unsigned readers;  // threads that it wants
    const ArrivalHook on_arrival;
    Paths paths;
    Owners owners;
    std::shared_ptr<Plan> plan = {};        // null: none; shared with the handle of the order
    Groups asleep = {};                     // groups that wake() brings back
    std::atomic<bool> follows = false;      // a plan wants to be told of each lease; not while all of it is there
    std::atomic<bool> stopped = false;      // its leases free what they end
    std::atomic<std::int64_t> stalled = 0;  // nanoseconds
    std::uint64_t uploaded_bytes = 0;
    std::uint64_t bytes_from_host = 0;  // bytes of these that came from the host tier
    std::uint64_t promised = 0;         // bytes of the host tier that the plan keeps
    std::uint64_t evictions = 0;
    std::size_t working = 0;   // uploads that are not over, and preparations that readers have to do
    std::size_t arriving = 0;  // uploads that are over, whose threads may still hold the group
    bool sleeping = false;
    bool stopping = false;
};

/// The state of a lease from Uploader::request() that was not waited for. The bundle is leased from the beginning on,
/// as long as this lives.
struct Awaited {
    Request request = {};
    Uploads uploads = {};
    bool begun = false;             // false: it waits for something in the way, and has no lease yet
    std::exception_ptr fault = {};  // why it did not begin

    /// Begins, if that needs no wait.
    void try_begin(const BundleData& bundle) noexcept;
    /// Does the same as Lease::ready().
    bool ready(const BundleData& bundle) noexcept;
};

/// The tensors of all uploaders of a budget. The words of groups are also changed without the lock.
class Cache : public std::enable_shared_from_this<Cache> {
public:
    /// Starts nothing. Throws invalid_argument as DeviceBudget() does. `readers`: null for those of the process.
    static std::shared_ptr<Cache> make(std::shared_ptr<Device> device, const DeviceBudgetOptions& options,
                                       std::shared_ptr<Readers> readers = nullptr);
    ~Cache();
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    // Views.
    std::shared_ptr<View> view(const UploadOptions& options, const PathRules& rules = {});
    /// Does the same as Uploader::bundle.
    static std::shared_ptr<const BundleData> bundle(const std::shared_ptr<View>& view, std::vector<LazyTensor> tensors);
    void prefetch(View& view, const Bundles& bundles);
    void evict(View& view, std::span<const std::shared_ptr<Group>> groups);
    UploadStats stats(const View& view) const;
    DeviceBudgetStats stats() const;
    /// Do the same as the members of Uploader.
    std::uint64_t sleep(View& view);
    void wake(View& view);
    /// Cancels all uploads of a view, waits for the jobs in progress, and frees everything that is not leased. Leases
    /// stay valid, and their memory is freed when they end. Nothing may be requested after this call.
    void stop(View& view) noexcept;
    std::uint64_t budget() const noexcept { return ledger_.budget(); }
    /// Returns true if this process was forked from one in which the cache had started. Then calls that need the lock
    /// throw, or do nothing: a thread that is not here may have had it.
    bool is_forked() const noexcept {
        const unsigned forks = started_.load(std::memory_order_relaxed);
        return forks != not_started && forks != count_forks();
    }
    void require_own_process() const;
    /// Returns the number of a new group, which is higher than those before.
    std::uint64_t number_group() noexcept { return ++groups_made_; }
    const std::shared_ptr<Device>& device() const noexcept { return device_; }

    // Leases.
    /// Leases all groups of a bundle if all are resident: one atomic step for each, without a lock.
    static bool try_lease(const BundleData& bundle) noexcept;
    /// Leases all groups, and uploads those that are absent. The calling thread takes part. Throws as
    /// Uploader::acquire().
    void lease(const BundleData& bundle, const Request& request);
    /// Ends the leases of a bundle. With a stream: its memory is in use until the work that is in the stream is done.
    void release(const BundleData& bundle, NativeStream stream) noexcept;
    /// Leases a bundle that is leased until its view stops.
    void lease_until_stop(const BundleData& bundle) noexcept;

    /// Leases all groups, and begins to upload those that are absent, without waiting. Returns the uploads to wait for,
    /// or nothing if something is in the way that leaves soon; then nothing is leased. Throws as lease().
    std::optional<Uploads> try_request(const BundleData& bundle, const Request& request);
    /// Waits for these uploads. Throws as lease(); then nothing is leased.
    void end_request(const BundleData& bundle, const Request& request, const Uploads& uploads);
    /// Ends the leases instead, and the uploads that nobody else wants.
    void cancel_request(const BundleData& bundle, const Uploads& uploads) noexcept;
    bool are_over(const Uploads& uploads) const noexcept;
    /// If there are no reader threads, does a piece of the work of a bundle that is on its way: at most one job.
    void help_without_readers(const BundleData& bundle);

    /// Orders what comes next after the copies that brought a leased bundle: the work of `stream`, or without a stream
    /// the caller, who is blocked until they are done. Throws device_failed, and invalid_argument for copies of the
    /// process that this one was forked from.
    void order(const BundleData& bundle, NativeStream stream, const Request& request = {});
    /// Returns the stream if work can be ordered before it and after it. Otherwise, for a stream that is being
    /// captured, returns none. Throws invalid_argument if the device has no streams of this kind.
    NativeStream orderable(NativeStream stream) const;
    /// Fences the memory of a leased bundle by the work that is in the stream. Returns false if that failed, or the
    /// stream is being captured.
    bool use(const BundleData& bundle, NativeStream stream) noexcept;
    /// Returns true if order() would not block for a bundle, which is leased and resident.
    static bool is_there(const BundleData& bundle) noexcept;

    // Plans.
    /// Does the same as Uploader::follow().
    std::shared_ptr<Plan> follow(View& view, Bundles order, bool cyclic);
    /// Begin a plan again, and end it, if its view still follows it.
    void restart(Plan& plan);
    void unfollow(std::shared_ptr<Plan> plan) noexcept;
    /// Has to be told of each lease that was taken in one step while View::follows is set.
    void reached(const BundleData& bundle);

    /// Does the same as Uploader::fill.
    std::shared_ptr<DeviceEvent> fill(View& view, std::span<const FillTarget> targets, NativeStream after);

private:
    friend class Group;
    friend class Preparation;
    friend class Upload;
    friend struct View;
    Cache(std::shared_ptr<Device> device, const DeviceBudgetOptions& options, std::shared_ptr<Readers> readers);
    using Lock = std::unique_lock<std::mutex>;
    using State = Word::State;

    /// Cancelled uploads, for which something is left to do when the lock is released. Chained, so that nothing that
    /// ends needs memory.
    struct Trash {
        Trash() = default;
        ~Trash() { clear(); }
        Trash(const Trash&) = delete;
        Trash& operator=(const Trash&) = delete;
        void add(std::shared_ptr<Upload> upload) noexcept;
        void clear() noexcept;

        std::shared_ptr<Upload> first = {};
    };
    class Leases;
    class Report;
    class Turn;
    struct Room;

    void start(const View& view);

    // Views.
    void begin_prefetches(View& view, const Bundles& bundles, Uploads& begun);
    void cancel_if(Lock& lock, const View& view, Trash& trash, const std::function<bool(const Upload&)>& which);
    void begin_asleep(View& view, const Groups& asleep, Uploads& begun);
    void evict_all(Lock& lock, View& view) noexcept;
    void forget(Group& group) noexcept;
    void close(View& view) noexcept;

    // Leases.
    std::optional<Uploads> begin_lease(const BundleData& bundle, const Request& request, Worker* worker);
    void end_wait(const BundleData& bundle, const Request& request, const Uploads& uploads, Worker& worker);
    void require_arrived(const Uploads& uploads) const;
    void abandon(const Uploads& uploads) noexcept;
    std::optional<Groups> join_arriving(Lock& lock, const BundleData& bundle, const Request& request, Worker* worker,
                                        Uploads& uploads);
    void wait_for_change(Lock& lock, const Request& request);
    void wait_for(const Uploads& uploads, Worker& worker, const Request& request = {}, Report* report = nullptr);
    [[noreturn]] void refuse(const BundleData& bundle) const;
    void order(Group& group, NativeStream stream, const Request& request);
    void remember_use(const BundleData& bundle, NativeStream stream);
    void hold(const BundleData& bundle) noexcept;
    void end_leases(const BundleData& bundle) noexcept;
    void free_unleased(const BundleData& bundle) noexcept;
    void note_failure(const std::exception_ptr& fault) noexcept;
    [[noreturn]] void throw_lost() const;

    // Arrivals: room.
    /// Returns a time at which nothing was used later.
    std::uint64_t now() const noexcept { return time_.load(std::memory_order_relaxed) + 1; }
    Uploads begin(View& view, const Groups& absent, const Ledger::Reach& reach, Trash& trash);
    bool begin_ahead(View& view, const Groups& absent, std::uint64_t since, Uploads& begun);
    bool admit(View& view, std::span<Group* const> groups, Ledger::Reach reach, Trash& trash);
    bool make_room(const View& view, std::uint64_t claims, const Ledger::Reach& reach, Room& room);
    static std::vector<std::uint32_t> take_slots(const Account& account, std::span<Group* const> groups,
                                                 std::vector<Holding*>& turns);
    void settle(Account& account, std::span<Group* const> groups, std::span<const std::uint32_t> slots,
                std::uint64_t in_blocks, bool demanded);
    static bool is_idle(const Upload& upload, bool shared) noexcept;
    Ledger::Missing cancellable(const View& view) const noexcept;
    void cancel_latest(const View& view, Ledger::Missing needed, Trash& trash) noexcept;
    bool is_small_on_its_way() const noexcept;
    void await_small(Lock& lock, const Request& request, Worker& worker);
    void evict(Holding& holding) noexcept;
    Space evict(Group& group) noexcept;
    void vacate(Holding& holding) noexcept;

    // Arrivals: memory.
    void prepare(const std::shared_ptr<Upload>& upload, bool helps, const Request& request = {}) noexcept;
    void prepare_if_waiting(const std::shared_ptr<Upload>& upload) noexcept;
    void submit(const std::shared_ptr<Upload>& upload) noexcept;
    void let_readers_prepare(const Uploads& begun) noexcept;
    void give_up(Upload& upload, std::exception_ptr fault) noexcept;
    bool provide(Upload& upload, const Request& request, Space& space);
    void take_picture(Upload& upload) noexcept;
    void free(Leaving& leaving) noexcept;
    void end_picture(Upload& upload, bool is_whole) noexcept;
    bool get_memory(Lock& lock, Upload& upload, const Request& request);
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t size, const Upload& upload, const AddressRange* range,
                                           const Request& request);
    void give_back(Space& space) noexcept;
    bool free(Lock& lock, Space space, Deadline deadline = Deadline::max()) noexcept;
    void free_kept(Lock& lock, Account& account) noexcept;

    // Arrivals: ends.
    void hurry(const std::shared_ptr<Upload>& upload, const Request& request);
    void arrive(Upload& upload, std::exception_ptr failed) noexcept;
    void cancel(Upload& upload, Trash& trash) noexcept;
    void leave(Upload& upload) noexcept;
    void settle_arrival(Upload& upload, std::exception_ptr failed) noexcept;
    void drop_preparation(const Upload& upload) noexcept;
    void end_work(View& view, std::size_t arrived = 0) noexcept;

    // Plans.
    std::uint64_t unpromised_host_bytes() const;
    void adopt(View& view, const std::shared_ptr<Plan>& plan, const Split& split);
    void begin_plan(View& view, Uploads& begun) noexcept;
    void keep_until_use(View& view) noexcept;
    void pass(const BundleData& bundle) noexcept;
    void advance(View& view, Uploads& begun) noexcept;
    bool may_take_slot(const View& view, const Group& group, std::size_t steps) const noexcept;
    static std::shared_ptr<Upload> in_the_way(const Groups& absent) noexcept;
    void go_on(View& view) noexcept;
    void end_slots(View& view, const Plan& plan) noexcept;

    void require_foreign(const View& view, const FillTask& task) const;

    static constexpr unsigned not_started = UINT32_MAX;

    const std::shared_ptr<Device> device_;
    std::once_flag once_;
    std::atomic<unsigned> started_ = not_started;  // the number of forks when it started
    std::shared_ptr<Readers> readers_;             // set when it starts
    StagingRing staging_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;  // something arrived, failed or left
    Ledger ledger_;
    Heap heap_;
    HostTier tier_;
    std::list<Upload*> uploads_;           // on their way, in the order in which they began
    std::atomic<std::uint64_t> time_ = 0;  // counts acquires of absent groups, and prefetches
    std::atomic<std::uint64_t> groups_made_ = 0;
    std::atomic<bool> lost_ = false;   // the device failed
    std::exception_ptr failure_ = {};  // how it failed
    unsigned demands_allocating_ = 0;  // calls of Device::allocate() that somebody waits for
};

}  // namespace safemap::SAFEMAP_ABI::device
