// The cache: brings groups of tensors to one device under a budget, and leases them. Knows tensors, not checkpoints.
#pragma once

#include "device/budget.hpp"
#include "device/group.hpp"
#include "device/owners.hpp"
#include "device/paths.hpp"
#include "device/plan.hpp"
#include "device/readers.hpp"
#include "device/request.hpp"
#include "device/residency.hpp"
#include "device/staging.hpp"
#include "device/upload.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/ticket.hpp>
#include <safemap/uploader.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// Says if the cache holds a bundle while its tensors are on the device: if the caller has no handle of it.
enum class Keep : std::uint8_t { no, yes };

/// The tensors of one uploader on a device, under a budget that caches may share. The mutex of the budget guards all
/// bookkeeping. It is never held while memory is allocated or freed, while anything is read, or while a copy is waited
/// for. The words of groups are also changed without it.
class Cache : public std::enable_shared_from_this<Cache> {
public:
    /// Starts no thread. `readers` must live until stop() returns. `staging_bytes` of the options is not used.
    Cache(std::shared_ptr<Budget> budget, const UploadOptions& options, Readers& readers, const PathRules& rules = {});
    /// Makes a cache with a budget of its own.
    Cache(std::shared_ptr<Device> device, const UploadOptions& options, Readers& readers, const PathRules& rules = {});
    ~Cache();
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    /// Does the same as Uploader::bundle.
    std::shared_ptr<const BundleData> bundle(std::vector<LazyTensor> tensors);

    /// Leases all groups of a bundle if all are resident: one atomic step for each, without a lock.
    static bool try_lease(const BundleData& bundle) noexcept;
    /// Leases all groups, and uploads those that are absent. The calling thread takes part. Throws as
    /// Uploader::acquire().
    void lease(const std::shared_ptr<const BundleData>& bundle, Keep keep, const Request& request);
    /// Orders what comes next after the copies that brought a leased bundle: the work of `stream`, or without a stream
    /// the caller, who is blocked until they are done. Throws device_failed.
    void order(const BundleData& bundle, NativeStream stream, const Request& request = {});
    /// Returns the stream if work can be ordered before it and after it. Otherwise, for a stream that is being
    /// captured, returns none. Throws invalid_argument if the device has no streams of this kind.
    NativeStream orderable(NativeStream stream) const;
    /// Fences the memory of a leased bundle by the work that is in the stream. Returns false if that failed, or the
    /// stream is being captured.
    bool use(const BundleData& bundle, NativeStream stream) noexcept;
    /// Leases a bundle that is leased until the cache stops.
    void lease_until_stop(const BundleData& bundle) noexcept;
    Device& device() const noexcept { return *device_; }
    /// Ends the leases of a bundle. With a stream: its memory is in use until the work that is in the stream is done.
    void release(const BundleData& bundle, NativeStream stream) noexcept;

    using Uploads = std::vector<std::shared_ptr<Upload>>;
    /// Leases all groups, and begins to upload those that are absent. Returns the uploads to wait for. Throws as
    /// lease(); then nothing is leased.
    Uploads request(const std::shared_ptr<const BundleData>& bundle, const Request& request);
    /// Waits for these uploads. Throws as lease(); then nothing is leased.
    void end_request(const std::shared_ptr<const BundleData>& bundle, const Request& request, const Uploads& uploads);
    /// Ends the leases instead, and the uploads that nobody else wants.
    void cancel_request(const BundleData& bundle, const Uploads& uploads) noexcept;
    bool are_over(const Uploads& uploads) const noexcept;
    /// Returns true if no copy of a bundle is in progress, which is leased and resident.
    static bool is_there(const BundleData& bundle) noexcept;

    void prefetch(std::span<const std::shared_ptr<const BundleData>> bundles, Keep keep);
    void evict(std::span<const std::shared_ptr<Group>> groups);
    std::shared_ptr<Group> owner_of(const LazyTensor& tensor) const { return owners_.find(tensor); }
    UploadStats stats() const;

    /// Does the same as Uploader::fill.
    std::shared_ptr<DeviceEvent> fill(std::span<const FillTarget> targets, NativeStream after);

    /// Does the same as Uploader::follow. An empty order ends the plan.
    void follow(std::vector<std::shared_ptr<const BundleData>> order, bool cyclic);
    /// Returns true if there is a plan: then reached() must be told of each lease that was taken in one step.
    bool follows() const noexcept { return follows_.load(std::memory_order_relaxed); }
    void reached(const BundleData& bundle);
    /// Do the same as the members of Uploader.
    std::uint64_t sleep();
    void wake();

    /// Cancels all uploads, waits for the jobs in progress, and frees everything that is not leased. Leases stay valid,
    /// and their memory is freed when they end. Nothing may be requested after this call.
    void stop() noexcept;

private:
    friend class Group;
    friend class Upload;
    using Lock = std::unique_lock<std::mutex>;
    using State = Word::State;
    using Bundles = std::list<std::shared_ptr<const BundleData>>;
    using Groups = std::vector<std::shared_ptr<Group>>;

    /// Work that must be done when the lock is released: owners to destroy, whose destructors may take it, and
    /// cancelled uploads whose copies have to be fenced.
    struct Trash {
        Trash() = default;
        ~Trash() { clear(); }
        Trash(const Trash&) = delete;
        Trash& operator=(const Trash&) = delete;
        void clear() noexcept;
        /// Makes room for so many cancelled uploads more.
        void reserve(std::size_t cancelled);

        std::vector<std::shared_ptr<Cache>> caches = {};  // caches of other uploaders, whose groups may be here
        Bundles bundles = {};
        Groups groups = {};
        Uploads uploads = {};
        Uploads copying = {};
    };
    class Leases;
    void join();
    struct Room;
    class Closed;

    // Acquiring.
    Uploads begin_lease(const BundleData& bundle, const Request& request, Worker& worker, bool helps);
    void end_wait(const std::shared_ptr<const BundleData>& bundle, Keep keep, const Request& request,
                  const Uploads& uploads, Worker& worker);
    void abandon(const Uploads& uploads) noexcept;
    Groups join_arriving(Lock& lock, const BundleData& bundle, const Request& request, Worker& worker, Uploads& uploads,
                         Trash& trash);
    void hurry(const std::shared_ptr<Upload>& upload, const Request& request);
    Uploads begin(const Groups& absent, Residency::Reach reach, bool demanded, Trash& trash);
    void wait_for_change(Lock& lock, const Request& request);
    void wait_for(const Uploads& uploads, Worker& worker, const Request& request = {});
    void keep(const std::shared_ptr<const BundleData>& bundle);
    void begin_prefetches(std::span<const std::shared_ptr<const BundleData>> bundles, Keep keep_them, Uploads& begun);
    [[noreturn]] void refuse(const BundleData& bundle) const;

    // Order.
    void order(Group& group, NativeStream stream, const Request& request);
    void remember_use(const BundleData& bundle, NativeStream stream);
    void hold(const BundleData& bundle) noexcept;
    void end_leases(const BundleData& bundle) noexcept;
    void note_failure(const std::exception_ptr& fault) noexcept;
    [[noreturn]] void throw_lost() const;

    void require_foreign(std::span<const FillTarget> targets) const;

    // Room.
    /// Returns a time at which nothing was used later.
    std::uint64_t now() const noexcept { return time_.load(std::memory_order_relaxed) + 1; }
    bool admit(std::span<Group* const> groups, Residency::Reach reach, bool demanded, Trash& trash);
    bool make_room(std::uint64_t claims, Residency::Reach reach, bool demanded, Room& room);
    std::vector<std::uint32_t> take_slots(std::span<Group* const> groups, std::vector<Holding*>& turns);
    static bool is_idle(const Upload& upload, bool shared) noexcept;
    std::uint64_t cancellable() const noexcept;
    bool await_small(Lock& lock, const Request& request, Worker& worker, const Trash& trash);
    bool await_own_small(Lock& lock, const Request& request, Worker& worker);
    void expect_cancelled(Trash& trash) const;
    std::uint64_t cancel_latest(std::uint64_t bytes, Trash& trash);
    void cancel(Upload& upload, Trash& trash) noexcept;
    void leave(Upload& upload) noexcept;
    template <class Which> void cancel_if(Lock& lock, Trash& trash, Which&& which);
    void evict(Holding& holding, Trash& trash) noexcept;
    Space evict(Group& group, Trash& trash) noexcept;
    void vacate(Holding& holding, Trash& trash) noexcept;
    void let_go(const Group& group, Trash& trash) noexcept;
    void settle(std::span<Group* const> groups, std::span<const std::uint32_t> slots, std::uint64_t shared_bytes);

    // Plans.
    void adopt(const Split& split, Trash& trash);
    void keep_until_use() noexcept;
    void pass(const BundleData& bundle) noexcept;
    void advance(Uploads& begun, Trash& trash) noexcept;
    bool may_take_slot(const Group& group, std::size_t steps) const noexcept;
    std::shared_ptr<Upload> in_the_way(const Groups& absent) const noexcept;
    void go_on() noexcept;
    void end_slots(const Plan& plan) noexcept;
    void begin_asleep(const Groups& asleep, Uploads& begun, Trash& trash);

    // Memory.
    void prepare(const std::shared_ptr<Upload>& upload, bool helps, const Request& request = {}) noexcept;
    void give_up(Upload& upload, std::exception_ptr fault) noexcept;
    bool provide(Upload& upload, const Request& request, Space& space);
    bool get_memory(Lock& lock, Upload& upload, const Request& request);
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t size, const Upload& upload);
    bool free(Lock& lock, Space space, Deadline deadline = Deadline::max()) noexcept;
    bool others_keep() const noexcept;
    void free_of_others(Lock& lock, std::uint64_t bytes, Deadline deadline);
    void free_kept(Lock& lock) noexcept;
    void free_unleased(const BundleData& bundle) noexcept;
    void evict_all(Lock& lock, Trash& trash) noexcept;

    // Uploads; called by Upload and Group.
    void arrive(Upload& upload, std::exception_ptr failed) noexcept;
    void forget(Group& group) noexcept;

    const std::shared_ptr<Budget> budget_;
    const std::shared_ptr<Device> device_;
    Readers& readers_;
    StagingRing& staging_;
    Paths paths_;
    Owners owners_;

    std::mutex& mutex_;                 // the budget's, as the next one is
    std::condition_variable& changed_;  // something arrived, failed or left
    Residency residency_;
    Heap heap_;
    const FillSizes sizes_;
    std::list<Upload*> uploads_;  // on their way, in the order in which they began
    std::unordered_map<const Group*, Bundles> kept_;
    std::unique_ptr<Plan> plan_;             // null: none
    std::atomic<bool> follows_ = false;      // there is a plan
    Groups asleep_;                          // groups that wake() brings back
    std::atomic<std::uint64_t> time_ = 0;    // counts acquires of absent groups, and prefetches
    std::atomic<std::int64_t> stalled_ = 0;  // nanoseconds
    std::atomic<bool> stopped_ = false;
    std::atomic<bool> lost_ = false;    // the device failed
    std::exception_ptr failure_ = {};   // how it failed
    std::size_t freeing_ = 0;           // pieces of memory that threads are freeing
    std::atomic<bool> joined_ = false;  // is among the caches of the budget
    bool sleeping_ = false;
    bool stopping_ = false;
    UploadStats stats_;
};

}  // namespace safemap::SAFEMAP_ABI::device
