// Brings tensors to a device on demand, under a memory budget.
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

struct UploadOptions {
    // What it may take.
    /// Device memory for resident tensors and those on their way. 0: nine tenths of what is free when opened.
    std::uint64_t device_budget = 0;
    /// Host memory for staging, where the device needs it; at least 4 KiB.
    std::uint64_t staging_bytes = 32ULL << 20;

    // How fast.
    unsigned readers = 0;  ///< threads that work beside those that acquire: at most 16; 0: one per processor, at most 4
};

/// What an Uploader has done so far.
struct UploadStats {
    std::uint64_t uploaded_bytes = 0;      ///< brought to the device, repeats counted
    std::uint64_t resident_bytes = 0;      ///< on the device now
    std::uint64_t peak_device_bytes = 0;   ///< the most there ever was; never above the budget
    std::uint64_t peak_staging_bytes = 0;  ///< 0 where the device is read into directly
    std::uint64_t evictions = 0;
    std::chrono::nanoseconds stalled{0};  ///< how long acquire() waited
    std::uint64_t bytes_pread = 0;        ///< read through the page cache
    std::uint64_t bytes_direct = 0;       ///< read past it
};

/// A tensor on a device, row-major. Memory that a lease holds is neither moved nor evicted. A copy of this that
/// outlives its lease keeps the memory, which the budget then no longer counts.
struct SAFEMAP_API DeviceTensor {
    std::string name;
    Dtype dtype = {};
    Shape shape = {};
    std::uint64_t nbytes = 0;
    std::shared_ptr<DeviceMemory> memory;  ///< exactly this tensor
};

/// What acquire() gives: tensors that stay on the device until it is released or destroyed. Move-only. May outlive
/// the Uploader. Not to be used from two threads at once.
class SAFEMAP_API Lease {
public:
    Lease() noexcept;
    Lease(Lease&&) noexcept;
    Lease& operator=(Lease&&) noexcept;
    ~Lease();

    /// In the order of the checkpoint.
    std::span<const DeviceTensor> tensors() const& noexcept;
    std::span<const DeviceTensor> tensors() const&& = delete;
    /// Throws tensor_not_found.
    const DeviceTensor& operator[](std::string_view name) const&;
    const DeviceTensor& operator[](std::string_view name) const&& = delete;
    /// Ends it before its time; its tensors may be evicted when something else needs the room.
    void release() noexcept;

private:
    friend class Uploader;
    struct Held;
    std::shared_ptr<Held> held_;
};

/// Keeps tensors of one checkpoint on one device. Members may be called from several threads at once. Its reader
/// threads are joined by the destructor.
class SAFEMAP_API Uploader {
public:
    Uploader(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options = {});
    ~Uploader();
    Uploader(const Uploader&) = delete;
    Uploader& operator=(const Uploader&) = delete;

    /// Brings what is not there, evicting what was used longest ago and is not leased, and waits until all of it
    /// is. Throws tensor_not_found, budget_exceeded (never waits for memory that a lease holds; the message says how
    /// much was needed and how much is leased), and what reading throws; then nothing new stays leased. A tensor with
    /// several names has in the lease the one that was asked for; a selection means what Checkpoint::select() gives.
    Lease acquire(std::string_view name);
    Lease acquire(const char* name) { return acquire(std::string_view(name)); }
    Lease acquire(const Selection& selection);
    /// A tensor that need not be in the checkpoint: a slice, a cast. What is not in the checkpoint is freed with the
    /// last lease of it.
    Lease acquire(const LazyTensor& tensor);

    /// Starts to bring what fits without evicting anything leased or being brought; returns at once. Faults show
    /// when the tensor is acquired.
    void prefetch(const Selection& selection);
    /// The same for tensors at hand: the next few of a list, a rank's slices. They stay until something else needs the
    /// room.
    void prefetch(std::span<const LazyTensor> tensors);

    /// Drops what is resident and not leased.
    void evict(const Selection& selection);

    UploadStats stats() const;

private:
    struct Engine;
    std::shared_ptr<Engine> engine_;
};

/// XXH3-128 (32 hex digits, canonical byte order) of the tensor as it stands on the device, read back in blocks.
/// Little-endian row-major bytes: the same value has the same digest on every device and in every container.
SAFEMAP_API std::string digest(Device& device, const DeviceTensor& tensor);

}  // namespace safemap::SAFEMAP_ABI
