// DeviceBudget: memory that several uploaders of one device share.
#pragma once

#include <safemap/api.hpp>
#include <safemap/device.hpp>

#include <cstdint>
#include <memory>

namespace safemap::SAFEMAP_ABI {

namespace device {
class Cache;
}

/// Options of a DeviceBudget.
struct DeviceBudgetOptions {
    /// Device memory in bytes, of all uploaders together. 0: nine tenths of the memory that is free when the
    /// DeviceBudget is made.
    std::uint64_t device_bytes = 0;
    /// Host memory in bytes for staging, of all uploaders together, if the device needs it; at least 4 KiB. 0: 128 MiB
    /// for CUDA, where it is page-locked, and 32 MiB for other devices. It is allocated when needed. All budgets of a
    /// process share one staging memory. Its limit is the largest `staging_bytes` among them; each budget adds at most
    /// two buffers of 8 MiB.
    std::uint64_t staging_bytes = 0;
    /// Host memory in bytes for a second tier between files and device, of all uploaders together, if the device needs
    /// staging; page-locked for CUDA. 0: none. It holds copies of bundles that were uploaded. A bundle that was
    /// evicted, or slept, comes back from its copy at the speed of the bus, and no file is read. If there is no room
    /// for all copies, W-TinyLFU or the order that is followed chooses. Bundles of at most 256 KiB have no copy.
    std::uint64_t host_bytes = 0;
};

/// Counters of all uploaders of a DeviceBudget, in bytes.
struct DeviceBudgetStats {
    std::uint64_t device_bytes = 0;        ///< allocated on the device, kept memory included
    std::uint64_t peak_device_bytes = 0;   ///< maximum of device_bytes; never above the budget
    std::uint64_t peak_staging_bytes = 0;  ///< maximum of staging; 0 if the device needs none
    std::uint64_t host_bytes = 0;          ///< allocated for the host tier
    std::uint64_t peak_host_bytes = 0;     ///< maximum of host_bytes; never above its budget
};

/// One budget for the uploaders of a device, such as those of a model and its draft model. `device_budget` of an
/// Uploader is a limit of its own inside this one. Copies stand for the same budget, and it lives as long as the last
/// copy, uploader or lease. Thread-safe.
///
/// Bundles of all uploaders are evicted in this order:
///
/// 1. bundles without a lease, as W-TinyLFU says: it keeps what is used often and what was used lately, and a single
///    pass over many bundles does not evict those
/// 2. bundles that were prefetched and not acquired yet
/// 3. bundles that an UploadOrder keeps. An order takes all that its uploader may have: give the uploader a
///    `device_budget` to leave the rest to others
///
/// Only acquire() and request() evict bundles of other uploaders, and cancel prefetches for which nobody waits.
/// Prefetches and orders do not. So acquire() throws budget_exceeded only if the leases of all uploaders leave no room.
///
/// Example:
///     safemap::DeviceBudget memory(safemap::Device::open("host"), {.device_bytes = 8_GiB});
///     safemap::Uploader model(memory, checkpoint);
///     safemap::Uploader draft(memory, checkpoint, {.device_budget = 1_GiB});
class SAFEMAP_API DeviceBudget {
public:
    /// Allocates nothing. Throws invalid_argument if `staging_bytes` is from 1 to 4,095, or there is no device.
    explicit DeviceBudget(std::shared_ptr<Device> device, const DeviceBudgetOptions& options = {});
    /// A move copies, so that no DeviceBudget is ever empty.
    DeviceBudget(const DeviceBudget&) = default;
    DeviceBudget& operator=(const DeviceBudget&) = default;

    const std::shared_ptr<Device>& device() const noexcept;
    /// Returns the budget in bytes.
    std::uint64_t device_bytes() const noexcept;
    [[nodiscard]] DeviceBudgetStats stats() const;

private:
    friend class Uploader;
    std::shared_ptr<device::Cache> cache_;
};

}  // namespace safemap::SAFEMAP_ABI
