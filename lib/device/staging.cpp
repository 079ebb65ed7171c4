// The buffers between readers and devices whose memory cannot be read into.
#include "device/staging.hpp"

#include "base/forks.hpp"

#include "device/fences.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

/// Returns true if no copy reads the buffer, or if that cannot be told: then who takes it waits until it can.
bool is_read(const std::shared_ptr<DeviceEvent>& copy) noexcept {
    try {
        return !copy || copy->done();
    } catch (...) {
        return true;
    }
}

// Nobody tells when a copy is done, when another ring can give a buffer up, or when there is something to help with.
constexpr std::chrono::microseconds look(200);

}  // namespace

StagingRing::Loan::Loan(StagingRing& ring, Slot slot) noexcept : ring_(&ring), slot_(std::move(slot)) {}

StagingRing::Loan::Loan(Loan&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)), slot_(std::move(other.slot_)) {}

StagingRing::Loan::~Loan() {
    if (ring_ != nullptr) ring_->give_back(std::move(slot_));
}

std::shared_ptr<StagingPool> StagingPool::of_process() { return shared_of_process<StagingPool>(); }

StagingRing::StagingRing(std::shared_ptr<Device> device, std::uint64_t buffer_bytes, std::size_t count,
                         std::shared_ptr<StagingPool> pool)
    : device_(std::move(device)),
      buffer_bytes_(buffer_bytes),
      most_bytes_(count * buffer_bytes),
      pool_(std::move(pool)),
      count_(count) {
    // So that give_back() and collect_done() cannot fail.
    copying_.reserve(count);
    done_.reserve(count);
    const std::lock_guard lock(pool_->mutex);
    pool_->rings.push_back(this);
}

StagingRing::~StagingRing() {
    std::array<Slots, 2> all;
    {
        const std::lock_guard lock(pool_->mutex);
        all = {std::move(copying_), std::move(done_)};
    }
    for (Slots& slots : all) {
        for (const Slot& slot : slots)
            if (slot.copy) wait_until_done(*slot.copy);
        slots.clear();
    }
    const std::lock_guard lock(pool_->mutex);
    std::erase(pool_->rings, this);
}

std::uint64_t StagingRing::allocated() const {
    const std::lock_guard lock(pool_->mutex);
    return bytes();
}

std::uint64_t StagingRing::peak() const {
    const std::lock_guard lock(pool_->mutex);
    return peak_ * buffer_bytes_;
}

StagingRing::Loan StagingRing::take(const Taker& taker) {
    Loan loan(*this, take_slot(taker));
    if (loan.slot_.copy) loan.slot_.copy->wait();  // if the device failed, it may still read the buffer
    loan.slot_.copy.reset();
    return loan;
}

void StagingRing::lend(const Taker& taker, const std::function<void(const Loan&, DeviceQueue*&)>& fill) {
    Loan loan = take(taker);
    DeviceQueue* queue = nullptr;
    std::exception_ptr fault;
    try {
        fill(loan, queue);
    } catch (...) {
        fault = std::current_exception();
    }
    try {
        if (queue != nullptr) loan.fence(queue->record());
    } catch (...) {
        queue->drain();
        if (!fault) fault = std::current_exception();
    }
    if (fault) std::rethrow_exception(fault);
}

/// Does without the lock what a taker does while it waits. Returns false if there was nothing to do.
bool StagingRing::help(std::unique_lock<std::mutex>& lock, const Taker& taker) {
    lock.unlock();
    const bool helped = taker.help();
    lock.lock();
    return helped;
}

/// Takes a buffer whose copy is done, or allocates one. Otherwise waits for one, whose copy may be in progress if the
/// taker does not help.
StagingRing::Slot StagingRing::take_slot(const Taker& taker) {
    GivenUp given_up;
    Device::Lane lane = taker.lane();
    std::unique_lock lock(pool_->mutex);
    for (;; lane = taker.lane()) {
        collect_done();
        const auto done = find_done(lane);
        if (done != done_.end()) return take_out(done_, done, lane);
        if (may_grow(lane, given_up)) break;
        // Who helps holds no buffer meanwhile: what is helped with may need that.
        const bool helps = lane == Device::Lane::bulk && taker.help;
        const auto next = helps ? copying_.end() : find_next(lane);
        if (next != copying_.end()) return take_out(copying_, next, lane);
        if (!helps || !help(lock, taker)) changed_.wait_for(lock, look);
    }
    count_use(lane, 1);
    lock.unlock();
    free(std::move(given_up));
    try {
        Slot slot{device_->allocate_staging(buffer_bytes_), nullptr, lane};
        lock.lock();
        peak_ = std::max(peak_, allocated_);
        make_reserve(lock);
        return slot;
    } catch (...) {
        lock.lock();
        count_use(lane, -1);
        --allocated_;
        // Continues with fewer buffers than requested.
        if (allocated_ > 0) count_ = allocated_;
        changed_.notify_all();
        if (allocated_ == 0) throw;
    }
    lock.unlock();
    return take_slot(taker);
}

/// Allocates a buffer for the demand lane if the bulk lane has all others. If that fails, the demand lane tries again.
void StagingRing::make_reserve(std::unique_lock<std::mutex>& lock) noexcept {
    if (bulk_ < allocated_ || allocated_ == count_) return;
    ++allocated_;
    lock.unlock();
    Slot slot;
    try {
        slot.buffer = device_->allocate_staging(buffer_bytes_);
    } catch (const std::exception&) {  // no memory
    }
    lock.lock();
    if (slot.buffer) done_.push_back(std::move(slot));
    else --allocated_;
    peak_ = std::max(peak_, allocated_);
    changed_.notify_all();
}

/// Returns true if the ring can do without this free buffer, or use it for the bulk lane: one is left to the other
/// lane.
bool StagingRing::may_be_bulk(const Slot& slot) const noexcept {
    return slot.lane == Device::Lane::bulk || bulk_ + 1 < allocated_ || count_ == 1;
}

/// Finds the buffers whose copies are done.
void StagingRing::collect_done() noexcept {
    std::array<bool, 2> busy = {};  // lanes with a copy in progress: their later copies are not done either
    auto kept = copying_.begin();
    for (Slot& slot : copying_) {
        bool& is_busy = busy[static_cast<std::size_t>(slot.lane)];
        const bool waits = slot.copy && (is_busy || !is_read(slot.copy));
        is_busy = is_busy || waits;
        if (waits) *kept++ = std::move(slot);
        else done_.push_back(std::move(slot));
    }
    copying_.erase(kept, copying_.end());
}

/// Returns the buffer for the lane whose copy was done last, of those collected, or the end. So no more buffers go
/// round than are needed, and they stay in the cache of the processor: with all buffers in turn, many readers come to
/// two thirds of their rate.
StagingRing::Slots::iterator StagingRing::find_done(Device::Lane lane) noexcept {
    const auto found = std::find_if(done_.rbegin(), done_.rend(), [&](const Slot& slot) {
        return lane == Device::Lane::demand || may_be_bulk(slot);
    });
    return found == done_.rend() ? done_.end() : std::prev(found.base());
}

/// Returns the buffer that a lane can wait for, or the end: the demand lane waits for no copy of the other one while
/// another buffer will be given back.
StagingRing::Slots::iterator StagingRing::find_next(Device::Lane lane) noexcept {
    return std::ranges::find_if(copying_, [&](const Slot& slot) {
        if (lane == Device::Lane::bulk) return may_be_bulk(slot);
        return slot.lane == Device::Lane::demand || bulk_ == allocated_;
    });
}

StagingRing::Slot StagingRing::take_out(Slots& from, Slots::iterator found, Device::Lane lane) noexcept {
    Slot slot = std::move(*found);
    from.erase(found);
    count_use(slot.lane, -1);
    count_use(lane, 1);
    slot.lane = lane;
    return slot;
}

void StagingRing::count_use(Device::Lane lane, int change) noexcept {
    if (lane == Device::Lane::bulk) bulk_ += static_cast<std::size_t>(change);
}

/// Frees a buffer of another ring; without the lock.
void StagingRing::free(GivenUp given_up) noexcept {
    if (given_up.slot.copy) wait_until_done(*given_up.slot.copy);
}

/// Counts one more buffer, if the ring may have it for the lane. Another ring may have to give one up for it.
bool StagingRing::may_grow(Device::Lane lane, GivenUp& given_up) {
    const bool is_bulk = lane == Device::Lane::bulk;
    if (allocated_ == count_ || (is_bulk && bulk_ + 1 == count_ && count_ > 1)) return false;
    // The first one of a lane is beyond the limit of the pool. So is another one if the bulk lane has all others.
    const bool is_due = is_bulk ? bulk_ == 0 && allocated_ < 2 : bulk_ == allocated_;
    if (!is_due && !is_room_in_pool()) {
        StagingRing* const giver = find_giver();
        if (giver == nullptr) return false;
        const auto given = giver->find_done(Device::Lane::bulk);
        given_up = {giver->device_, giver->take_out(giver->done_, given, Device::Lane::demand)};
        --giver->allocated_;
    }
    ++allocated_;
    return true;
}

/// Returns the largest ring that can do without a buffer which is no smaller than one of this ring, or null.
StagingRing* StagingRing::find_giver() noexcept {
    StagingRing* giver = nullptr;
    for (StagingRing* const ring : pool_->rings) {
        const bool stays_larger = ring->bytes() >= bytes() + buffer_bytes_ + ring->buffer_bytes_;
        if (!stays_larger || ring->buffer_bytes_ < buffer_bytes_) continue;
        if (giver != nullptr && giver->bytes() >= ring->bytes()) continue;
        ring->collect_done();
        if (ring->find_done(Device::Lane::bulk) != ring->done_.end()) giver = ring;
    }
    return giver;
}

bool StagingRing::is_room_in_pool() const noexcept {
    std::uint64_t all = 0;
    std::uint64_t most = 0;
    for (const StagingRing* const ring : pool_->rings) {
        all += ring->bytes();
        if (ring == this || ring->allocated_ > 0) most = std::max(most, ring->most_bytes_);
    }
    return all + buffer_bytes_ <= most;
}

void StagingRing::give_back(Slot slot) noexcept {
    {
        const std::lock_guard lock(pool_->mutex);
        copying_.push_back(std::move(slot));
    }
    changed_.notify_all();
}

}  // namespace safemap::SAFEMAP_ABI::device
