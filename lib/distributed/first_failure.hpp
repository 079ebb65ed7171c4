// Which of several failures of parallel work is reported: that of the first item.
#pragma once

#include <safemap/api.hpp>

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>

namespace safemap::SAFEMAP_ABI::distributed {

/// The exception of the first item, in the order of the items, of those that have one: which error is reported does not
/// depend on the threads.
class FirstFailure {
public:
    explicit FirstFailure(std::size_t items) : at_(items) {}

    /// Returns true if an item before number `i` has failed.
    bool is_before(std::size_t i) const noexcept { return at_.load(std::memory_order_relaxed) < i; }
    void add(std::size_t i, std::exception_ptr error) {
        const std::lock_guard lock(mutex_);
        if (i >= at_) return;
        at_ = i;
        error_ = std::move(error);
    }
    /// Must not be called while others add.
    void rethrow() {
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    }

private:
    std::mutex mutex_;
    std::atomic<std::size_t> at_;
    std::exception_ptr error_;
};

}  // namespace safemap::SAFEMAP_ABI::distributed
