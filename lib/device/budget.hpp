// The budget of a device: caches share its lock, its limits, and its staging.
#pragma once

#include "device/staging.hpp"

#include <safemap/device_budget.hpp>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class Cache;

/// Bytes under a limit.
struct Quota {
    std::uint64_t limit = 0;
    std::uint64_t used = 0;
    std::uint64_t peak = 0;

    std::uint64_t free() const noexcept { return limit - used; }
    void add(std::uint64_t bytes) noexcept {
        assert(bytes <= free());
        used += bytes;
        peak = std::max(peak, used);
    }
    void subtract(std::uint64_t bytes) noexcept {
        assert(bytes <= used);
        used -= bytes;
    }
};

/// Returns true for the devices of CUDA, which have a bus that is as fast as many readers.
bool is_cuda(const Device& device) noexcept;

/// The state of a DeviceBudget. One mutex guards the bookkeeping of all its caches, so a cache can take memory of
/// another one in one step.
struct Budget {
    Budget(std::shared_ptr<Device> device, const DeviceBudgetOptions& options);
    Budget(const Budget&) = delete;
    Budget& operator=(const Budget&) = delete;

    /// Returns the caches but one, which are kept alive; under the lock. The result must not be destroyed under it.
    std::vector<std::shared_ptr<Cache>> others(const Cache& than) const;
    /// Returns the bytes that each cache may have, whatever others need.
    std::uint64_t equal_part() const noexcept { return claimed.limit / std::max<std::size_t>(caches.size(), 1); }

    const std::shared_ptr<Device> device;
    const std::uint64_t staging_limit;
    StagingRing staging;

    std::mutex mutex;
    std::condition_variable changed;  // something arrived, failed or left
    Quota claimed;                    // memory of resident and arriving tensors, whether or not it is allocated yet
    Quota allocated;                  // memory that exists
    std::vector<Cache*> caches;       // not those that have stopped
    unsigned demands_allocating = 0;  // calls of Device::allocate() that somebody waits for
};

}  // namespace safemap::SAFEMAP_ABI::device
