// The ring of buffers between readers and a device whose memory cannot be read into.

#include "device/staging.hpp"

#include "device/fences.hpp"

#include <exception>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {

StagingRing::Loan::Loan(StagingRing& ring, Slot slot) noexcept : ring_(&ring), slot_(std::move(slot)) {}

StagingRing::Loan::Loan(Loan&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)), slot_(std::move(other.slot_)) {}

StagingRing::Loan::~Loan() {
    if (ring_ != nullptr) ring_->give_back(std::move(slot_));
}

StagingRing::StagingRing(std::shared_ptr<Device> device, std::uint64_t buffer_bytes, std::size_t count)
    : device_(std::move(device)), buffer_bytes_(buffer_bytes), count_(count) {
    free_.reserve(count);  // so that give_back() cannot fail
}

StagingRing::~StagingRing() {
    for (const Slot& slot : free_)
        if (slot.copy) wait_until_done(*slot.copy);
}

std::uint64_t StagingRing::allocated() const {
    const std::lock_guard lock(mutex_);
    return allocated_ * buffer_bytes_;
}

StagingRing::Loan StagingRing::take() {
    Loan loan(*this, take_slot());
    if (const auto copy = std::move(loan.slot_.copy)) wait_until_done(*copy);
    return loan;
}

void StagingRing::lend(const std::function<void(const std::shared_ptr<StagingBuffer>&, DeviceQueue*&)>& fill) {
    Loan loan = take();
    DeviceQueue* queue = nullptr;
    std::exception_ptr fault;
    try {
        fill(loan.buffer(), queue);
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

StagingRing::Slot StagingRing::take_slot() {
    std::unique_lock lock(mutex_);
    given_back_.wait(lock, [&] { return !free_.empty() || allocated_ < count_; });
    const bool ready = !free_.empty() && (!free_.front().copy || free_.front().copy->done());
    if (ready || allocated_ == count_) {
        Slot slot = std::move(free_.front());
        free_.erase(free_.begin());
        return slot;
    }
    ++allocated_;
    lock.unlock();
    try {
        return {device_->allocate_staging(buffer_bytes_), nullptr};
    } catch (...) {
        lock.lock();
        --allocated_;
        // Continues with fewer buffers than requested.
        if (allocated_ > 0) count_ = allocated_;
        given_back_.notify_all();
        if (allocated_ == 0) throw;
    }
    lock.unlock();
    return take_slot();
}

void StagingRing::give_back(Slot slot) noexcept {
    {
        const std::lock_guard lock(mutex_);
        free_.push_back(std::move(slot));
    }
    given_back_.notify_one();
}

}  // namespace safemap::SAFEMAP_ABI::device
