// Uploader: uploads tensors to a device on demand, under a memory budget.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Options of an Uploader.
struct UploadOptions {
    // Options that limit memory.
    /// Device memory in bytes for tensors that are resident or being uploaded. 0: nine tenths of the memory that is
    /// free when the Uploader is made.
    std::uint64_t device_budget = 0;
    /// Host memory in bytes for staging, if the device needs it; at least 4 KiB.
    std::uint64_t staging_bytes = 32ULL << 20;

    // Options that affect performance.
    unsigned readers = 0;  ///< reader threads, not callers of acquire(): at most 16; 0: one per processor, at most 4
};

/// Counters of an Uploader since it was made.
struct UploadStats {
    std::uint64_t uploaded_bytes = 0;      ///< bytes uploaded, repeated uploads included
    std::uint64_t resident_bytes = 0;      ///< bytes on the device now
    std::uint64_t peak_device_bytes = 0;   ///< maximum bytes on the device; never above the budget
    std::uint64_t peak_staging_bytes = 0;  ///< maximum bytes of staging; 0 if files are read directly into the device
    std::uint64_t evictions = 0;
    std::chrono::nanoseconds stalled{0};  ///< time that acquire() waited
    std::uint64_t bytes_pread = 0;        ///< bytes read through the page cache
    std::uint64_t bytes_direct = 0;       ///< bytes read without the page cache; 0 at present
};

/// A tensor on a device, row-major. Memory that a lease holds is neither moved nor evicted. A copy of a DeviceTensor
/// that outlives its lease keeps the memory, but the budget no longer counts it.
struct SAFEMAP_API DeviceTensor {
    std::string name;
    Dtype dtype = {};
    Shape shape = {};
    std::uint64_t nbytes = 0;              ///< size of the value in bytes
    std::shared_ptr<DeviceMemory> memory;  ///< exactly the bytes of this tensor
};

/// The result of Uploader::acquire(): tensors that stay on the device until the lease is released or destroyed. Leases
/// can be moved, not copied. A lease may outlive its Uploader. It must not be used from two threads at once.
///
/// Example:
///     safemap::Lease lease = uploader.acquire("wte.weight");
///     const safemap::DeviceTensor& weight = lease["wte.weight"];
///     use(weight.memory->handle(), weight.nbytes);
class SAFEMAP_API Lease {
public:
    Lease() noexcept;
    Lease(Lease&&) noexcept;
    Lease& operator=(Lease&&) noexcept;
    ~Lease();

    /// Returns the tensors, in the order of the checkpoint. The span is valid until the lease ends.
    std::span<const DeviceTensor> tensors() const& noexcept;
    std::span<const DeviceTensor> tensors() const&& = delete;
    /// Returns the tensor with this name. Throws tensor_not_found.
    const DeviceTensor& operator[](std::string_view name) const&;
    const DeviceTensor& operator[](std::string_view name) const&& = delete;
    /// Ends the lease. Its tensors may be evicted when other tensors need the memory.
    void release() noexcept;

private:
    friend class Uploader;
    struct Held;
    std::shared_ptr<Held> held_;
};

/// Uploads tensors of one checkpoint to one device, and evicts them, least recently used first, to stay within a memory
/// budget. Owns its reader threads, which the destructor joins, and shares the device and the checkpoint. Members may
/// be called from several threads at once.
///
/// Example:
///     safemap::Uploader weights(safemap::Device::open("host"), checkpoint, {.device_budget = 8_GiB});
///     safemap::Lease layer = weights.acquire(safemap::Selection::prefix("model.layers.1"));
///     for (const safemap::DeviceTensor& one : layer.tensors()) use(one.memory->handle(), one.nbytes);
class SAFEMAP_API Uploader {
public:
    /// Makes an uploader, and starts no thread before the first upload. Throws invalid_argument if `staging_bytes` is
    /// below 4 KiB.
    Uploader(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options = {});
    ~Uploader();
    Uploader(const Uploader&) = delete;
    Uploader& operator=(const Uploader&) = delete;

    /// Uploads the tensors that are not on the device, waits until all of them are, and returns a lease on them. Evicts
    /// tensors without a lease if their memory is needed, least recently used first. A tied tensor has in the lease the
    /// name that was requested; a selection stands for the tensors of Checkpoint::select().
    ///
    /// Throws tensor_not_found, budget_exceeded, and whatever reading throws; then no tensor stays leased by this call.
    /// Never waits for memory that a lease holds: that is budget_exceeded, whose message has the bytes needed and
    /// leased.
    Lease acquire(std::string_view name);
    Lease acquire(const char* name) { return acquire(std::string_view(name)); }
    Lease acquire(const Selection& selection);
    /// Uploads a tensor that need not be in the checkpoint, such as a slice or a cast. The memory of such a tensor is
    /// freed with its last lease. Throws as above.
    Lease acquire(const LazyTensor& tensor);

    /// Starts to upload the tensors that fit without evicting tensors that are leased or being uploaded, and returns at
    /// once. Errors are thrown when the tensor is acquired.
    void prefetch(const Selection& selection);
    /// Starts to upload the given tensors likewise: the next few of a list, or slices for a rank. They stay on the
    /// device until other tensors need the memory.
    void prefetch(std::span<const LazyTensor> tensors);

    /// Evicts the tensors that are resident and not leased.
    void evict(const Selection& selection);

    /// Returns the counters so far.
    UploadStats stats() const;

private:
    struct Impl;
    std::shared_ptr<Impl> engine_;
};

/// Returns the XXH3-128 digest (32 hex digits, canonical byte order) of a tensor on a device, which is read back in
/// blocks. The digest is that of the little-endian row-major bytes, so equal values have equal digests on every device
/// and in every format.
SAFEMAP_API std::string digest(Device& device, const DeviceTensor& tensor);

}  // namespace safemap::SAFEMAP_ABI
