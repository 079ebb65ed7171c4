// The buffers between readers and devices whose memory cannot be read into: a ring for each budget, and one limit for
// the rings of the process.
#pragma once

#include <safemap/advanced/device_backend.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class StagingRing;

/// The staging of a process, which the rings of its devices share. Together they have no more bytes than the one of
/// them that may have most, but each may have a buffer for each lane. So no ring waits for another one, and none has to
/// be told how many there are.
struct StagingPool {
    /// Returns the pool of this process. It lives as long as somebody holds it.
    static std::shared_ptr<StagingPool> of_process();

    std::mutex mutex;  // guards the rings, too
    std::vector<StagingRing*> rings;
};

/// A ring of buffers of one size, allocated when first needed. Each buffer is fenced by the event of the last copy out
/// of it, so no thread gets a buffer that the device may still read. All members may be called from several threads at
/// once.
///
/// If there are two buffers or more, copies of the bulk lane never have all of them: such copies may be behind work of
/// the caller that takes long, and what somebody waits for must not be behind them. The one that is left is allocated
/// when the bulk lane begins, because a driver may lock no memory while copies keep its device busy.
///
/// A ring that needs a buffer when the pool has none left takes one that is not in use from the largest ring, if that
/// has more even afterwards. The buffer is freed, because devices cannot share it in general.
class StagingRing {
public:
    /// Allocates nothing. The ring has at most `count` buffers of `buffer_bytes`.
    StagingRing(std::shared_ptr<Device> device, std::uint64_t buffer_bytes, std::size_t count,
                std::shared_ptr<StagingPool> pool = StagingPool::of_process());
    /// Waits for the copies in progress.
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
    /// Returns the bytes of all buffers.
    std::uint64_t allocated() const;
    /// Returns the maximum of allocated().
    std::uint64_t peak() const;

    /// A buffer on loan, from take() until the loan goes out of scope.
    class Loan {
    public:
        Loan(Loan&& other) noexcept;
        Loan& operator=(Loan&&) = delete;
        ~Loan();

        const std::shared_ptr<StagingBuffer>& buffer() const noexcept { return slot_.buffer; }
        /// Returns the lane in which copies out of it are to be queued.
        Device::Lane lane() const noexcept { return slot_.lane; }
        /// Keeps the buffer in use until `copy` is done.
        void fence(std::shared_ptr<DeviceEvent> copy) noexcept { slot_.copy = std::move(copy); }

    private:
        friend class StagingRing;
        struct Slot {
            std::shared_ptr<StagingBuffer> buffer = {};
            std::shared_ptr<DeviceEvent> copy = {};
            Device::Lane lane = Device::Lane::demand;  // the one that used it last
        };
        Loan(StagingRing& ring, Slot slot) noexcept;

        StagingRing* ring_;
        Slot slot_;
    };

    /// Who takes a buffer. Copies of the bulk lane may have to wait for work of the caller that takes long.
    struct Taker {
        std::function<Device::Lane()> lane;  ///< the lane of its copies, which may change while it waits
        /// What it does meanwhile in the bulk lane, without a buffer. Returns false if there was nothing to do.
        std::function<bool()> help = {};
    };
    /// Takes a buffer. Waits until there is one and the device is done with it. Throws out_of_memory if no buffer can
    /// be allocated, and device_failed.
    Loan take(const Taker& taker);
    Loan take(Device::Lane lane) {
        return take({[lane] { return lane; }});
    }

    /// Takes a buffer, lets `fill` read into it and queue copies out of it, and keeps the buffer in use until they are
    /// done, even if `fill` throws. `fill` sets `queue` before it queues a copy. Throws what `fill` throws,
    /// out_of_memory and device_failed.
    void lend(const Taker& taker, const std::function<void(const Loan& loan, DeviceQueue*& queue)>& fill);

private:
    using Slot = Loan::Slot;
    using Slots = std::vector<Slot>;
    Slot take_slot(const Taker& taker);
    static bool help(std::unique_lock<std::mutex>& lock, const Taker& taker);
    void make_reserve(std::unique_lock<std::mutex>& lock) noexcept;
    void give_back(Slot slot) noexcept;

    // Under the mutex of the pool.
    std::uint64_t bytes() const noexcept { return allocated_ * buffer_bytes_; }
    bool may_be_bulk(const Slot& slot) const noexcept;
    void collect_done() noexcept;
    Slots::iterator find_done(Device::Lane lane) noexcept;
    Slots::iterator find_next(Device::Lane lane) noexcept;
    Slot take_out(Slots& from, Slots::iterator found, Device::Lane lane) noexcept;
    void count_use(Device::Lane lane, int change) noexcept;
    /// A buffer of another ring, and the device that it needs to be freed.
    struct GivenUp {
        std::shared_ptr<Device> device = {};
        Slot slot = {};
    };
    static void free(GivenUp given_up) noexcept;
    bool may_grow(Device::Lane lane, GivenUp& given_up);
    StagingRing* find_giver() noexcept;
    bool is_room_in_pool() const noexcept;

    const std::shared_ptr<Device> device_;
    const std::uint64_t buffer_bytes_;
    const std::uint64_t most_bytes_;
    const std::shared_ptr<StagingPool> pool_;
    std::condition_variable changed_;
    Slots copying_;      // buffers that a copy may still read, in the order in which they were given back
    Slots done_;         // buffers that no copy reads: the one whose copy was done last is the last
    std::size_t count_;  // the most; fewer if one could not be allocated
    std::size_t allocated_ = 0;
    std::size_t bulk_ = 0;  // buffers of the bulk lane: by their last use
    std::size_t peak_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::device
