// Uploader: uploads tensors to a device on demand, under a memory budget.
#pragma once

#include <safemap/bundle.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/device_budget.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/request.hpp>
#include <safemap/upload_order.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tensor, and memory of the device for its row-major value. Uploader::fill() writes the value into memory of the
/// caller; an ArrivalHook finds it in memory of the bundle that arrived.
struct FillTarget {
    LazyTensor tensor;
    void* address = nullptr;   ///< beginning of the memory: an address on the device, or a cl_mem (Device::borrow())
    std::uint64_t size = 0;    ///< size of that memory in bytes
    std::uint64_t offset = 0;  ///< bytes from its beginning to the value: nothing can be added to a cl_mem
};

/// A function for tensors that arrived on the device; see UploadOptions::on_arrival.
using ArrivalHook = std::function<void(NativeStream stream, std::span<const FillTarget> tensors)>;

/// Options of an Uploader.
struct UploadOptions {
    // Options that limit memory.
    /// Maximum device memory in bytes. Resident tensors count, tensors that are being uploaded, and free blocks that
    /// are kept for the next ones. 0 means nine tenths of the memory that is free when the Uploader is made, or all of
    /// its DeviceBudget. More than the DeviceBudget has no effect.
    std::uint64_t device_budget = 0;
    /// Host memory in bytes for staging, as in DeviceBudgetOptions. A DeviceBudget has its own.
    std::uint64_t staging_bytes = 0;
    /// Host memory in bytes for a tier between files and device, as in DeviceBudgetOptions. A DeviceBudget has its own.
    std::uint64_t host_bytes = 0;

    // Options that affect performance.
    /// Reader threads, not counting callers of acquire(): at most 16; 0: one per processor, at most 12 for CUDA and 4
    /// for other devices. All uploaders of a process share their readers: there are as many as the uploader that asks
    /// for most.
    unsigned readers = 0;
    /// If true, large files on local disks that are not in the page cache may be read past it (O_DIRECT). A file is, if
    /// its first blocks come faster that way. Set it to false if other processes read the same files and want them
    /// cached.
    bool direct_reads = true;

    // Options of addresses.
    /// If true, bundles come back after sleep() at the addresses that they had, so CUDA graphs that use them stay
    /// valid. Uploader::sleep() has the promise. Memory then comes in multiples of Device::reserve(1)->size(), which is
    /// 2 MiB on GPUs of NVIDIA and a page on `host`. Whole multiples count against the budget, so small bundles waste
    /// it; those of up to 256 KiB share memory. Addresses without memory count nothing. Throws invalid_argument
    /// if the device cannot keep addresses: one of OpenCL, or of a CUDA driver without virtual memory management.
    bool keep_addresses = false;

    /// Called each time after tensors were copied to the device, to repack or quantise them in place.
    ///
    /// - The tensors are all that the bundle owns. The function must not change other bytes, and must not call the
    ///   uploader.
    /// - With a stream: work that the function puts into `stream` runs after the copies, and before the work of leases.
    ///   The stream is the uploader's own, and the device's CUDA context is current. Later copies wait for this work.
    /// - Without a stream (the device has none, or the host wrote to its memory): the copies are done. The function
    ///   must finish its work before it returns.
    /// - Several threads may call it at once: readers, and callers that wait for a bundle.
    /// - If it throws, the call that waits for the bundle throws the same, and the tensors are not on the device.
    ArrivalHook on_arrival = {};
};

/// Counters of an Uploader since it was made.
struct UploadStats {
    std::uint64_t uploaded_bytes = 0;     ///< bytes of tensors uploaded, repeated uploads included
    std::uint64_t bytes_from_host = 0;    ///< bytes of these that the host tier had, and no file was read for
    std::uint64_t resident_bytes = 0;     ///< bytes of device memory that hold tensors now
    std::uint64_t peak_device_bytes = 0;  ///< maximum bytes allocated on the device; never above the budget
    /// maximum bytes of staging, of all uploaders of a DeviceBudget; 0 if files are read directly into the device
    std::uint64_t peak_staging_bytes = 0;
    std::uint64_t evictions = 0;          ///< bundles evicted
    std::chrono::nanoseconds stalled{0};  ///< time in acquire() of tensors that were not resident
    /// Bytes read through the page cache, or from other sources than files. Gaps between small parts are read, too.
    std::uint64_t bytes_pread = 0;
    std::uint64_t bytes_direct = 0;           ///< bytes read past the page cache (O_DIRECT)
    std::chrono::nanoseconds time_pread{0};   ///< time that threads took to read bytes_pread, added up
    std::chrono::nanoseconds time_direct{0};  ///< the same for bytes_direct
};

/// Uploads tensors of one checkpoint to one device, and evicts them to stay within a memory budget. Shares the device,
/// the checkpoint, and the reader threads of the process. Members may be called from several threads at once.
///
/// The unit is the bundle. A program that knows its layers or experts makes their bundles once, and leases those.
///
/// Example:
///     safemap::Uploader weights(safemap::Device::open("host"), checkpoint, {.device_budget = 8_GiB});
///     safemap::Bundle layer = weights.bundle(safemap::Selection::prefix("model.layers.1"));
///     safemap::Lease lease = weights.acquire(layer);
///     for (const safemap::DeviceTensor& one : lease.tensors()) use(one.address(), one.nbytes());
class SAFEMAP_API Uploader {
public:
    /// Makes an uploader, and starts no thread before the first upload. Throws invalid_argument if `staging_bytes` is
    /// from 1 to 4,095.
    Uploader(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options = {});
    /// Makes an uploader to the device of `budget`, which it shares with others.
    Uploader(const DeviceBudget& budget, Checkpoint checkpoint, const UploadOptions& options = {});
    /// Stops prefetches, and frees all tensors that are not leased.
    ~Uploader();
    Uploader(const Uploader&) = delete;
    Uploader& operator=(const Uploader&) = delete;

    /// Makes a bundle of the tensors of Checkpoint::select(). Reads nothing. Takes time linear in the names of the
    /// checkpoint, and from the ninth time on only in those that begin as the selection says. Throws tensor_not_found
    /// as select() does, and budget_exceeded for more than 2^64 bytes.
    Bundle bundle(const Selection& selection);
    /// Makes a bundle of tensors that need not be in the checkpoint, such as slices for a rank, or casts. Takes time
    /// linear in their number. Tensors with the same elements are uploaded once.
    ///
    /// The uploader does not keep this bundle: when its last handle and its last lease are gone, so are its tensors.
    Bundle bundle(std::span<const LazyTensor> tensors);
    /// Returns the bundle of one tensor, by its name or by a tied name; leases have it under that name. The uploader
    /// keeps it, so its tensor stays on the device until it makes way for others: acquire(bundle(name)) is for programs
    /// that touch a tensor now and then. After the first call for a name, takes a look-up under a lock. Throws
    /// tensor_not_found, and invalid_argument if `name` is null.
    Bundle bundle(std::string_view name);
    Bundle bundle(const char* name);

    /// Leases the tensors of a bundle. If they are on the device, that is one atomic step: it takes no lock and
    /// allocates nothing. Otherwise uploads them, waits until all of them are there, and evicts tensors without a lease
    /// if their memory is needed. The calling thread takes part in the reading.
    ///
    /// Throws budget_exceeded, and whatever reading throws; then this call leaves no lease. Never waits for memory that
    /// a lease holds: that is budget_exceeded, whose message has the bytes needed and leased. Throws invalid_argument
    /// for a bundle of another uploader, or of none.
    ///
    /// With a stream: returns when the tensors are read and their copies queued, and lets the work that is put into the
    /// stream from now on happen after them, without blocking the host. The lease is for the work of that stream; see
    /// Lease. Throws device_failed if the device failed, and invalid_argument for a stream of another kind of device.
    ///
    /// Throws deadline_passed and cancelled as `request` says.
    Lease acquire(const Bundle& bundle, NativeStream stream = {}, const Request& request = {});
    /// Leases the tensors of a bundle if all of them are on the device, or queued to be copied there. Returns nothing
    /// otherwise, and does not upload the bundle. Also returns nothing at a moment at which another thread is just
    /// looking for memory to evict. Throws invalid_argument and device_failed as acquire() does.
    [[nodiscard]] std::optional<Lease> try_acquire(const Bundle& bundle, NativeStream stream = {});

    /// Starts to acquire a bundle, and returns at once. Reader threads allocate the memory and read; a thread that
    /// calls Lease::wait() before they are done takes part. Throws invalid_argument for a bundle of another uploader,
    /// or of none. All other errors are thrown by Lease::wait().
    Lease request(const Bundle& bundle, const Request& request = {});

    /// Starts to upload bundles, in the given order, and returns at once: reader threads allocate the memory and read.
    /// Uploads only the bundles for which there is room without evicting tensors that are leased, that are being
    /// uploaded, or that were prefetched and not acquired since. Such a prefetched tensor can be evicted, too, after
    /// more steps than there are bundles on the device. Errors of an upload are thrown when its bundle is acquired.
    /// Throws invalid_argument as acquire() does.
    void prefetch(std::span<const Bundle> bundles);
    void prefetch(const Bundle& bundle) { prefetch(std::span(&bundle, 1)); }

    /// Writes tensors into memory of the caller, such as the parameters of a model that runs: addresses stay, so CUDA
    /// graphs that use them stay valid. The memory is of this device, counts against no budget, and does not overlap.
    /// Tensors need not be in the checkpoint, and several targets may have the same one.
    ///
    /// Copies happen after the work that is in `after` now, if that is a stream. Returns when all tensors are read and
    /// their copies queued; the calling thread takes part in the reading. The event that it returns is done when the
    /// copies are: Device::make_wait() lets a stream wait for it, and DeviceEvent::wait() of
    /// advanced/device_backend.hpp the host. Keep the memory until then. Where the host can write
    /// to all targets and no work may still use them, files are read straight into them, without slabs.
    ///
    /// Throws whatever reading throws, device_failed, and invalid_argument for a target without memory or that ends
    /// outside it, memory that an uploader of this budget lends, and a stream that is being captured. After an error of
    /// reading, no copy is in progress, and the contents of the targets are undefined: some may have the new value, or
    /// a part of it.
    [[nodiscard]] std::shared_ptr<DeviceEvent> fill(std::span<const FillTarget> targets, NativeStream after = {});

    /// Follows an order in which a program uses bundles again and again: after the last bundle comes the first one. A
    /// bundle may be in the order several times, as in a pass forward and back. Starts the first uploads, and returns
    /// at once. Later uploads start by themselves, as far as there is room: at each UploadOrder::next(), at each
    /// acquire() of a bundle of the order, and when a lease of such a bundle ends. No other prefetch is needed.
    ///
    /// If the bundles do not fit into the budget:
    ///
    /// - Some of them stay on the device, spread evenly over the order.
    /// - The others take turns in two slots of memory. Such a bundle comes to the same address each time, if no lease
    ///   holds its slot.
    /// - A pass uploads S - (B - W) bytes, and at most one bundle more, because a bundle stays as a whole or not at
    /// all.
    ///   S is the size of all bundles, B the budget, and W the size of the slots: at most the two largest bundles.
    /// - Bundles that share tensors have no slot. They are the first to stay; otherwise they are uploaded and evicted.
    ///
    /// Bundles that are not in the order can still be acquired. Memory that the order uses is evicted last.
    ///
    /// Throws budget_exceeded if the slots do not fit into the budget, or a bundle does not, and invalid_argument as
    /// acquire() does, for an order without bundles, and while the uploader follows another order: end that first.
    /// Takes time linear in the order.
    UploadOrder follow(std::span<const Bundle> bundles);
    /// Follows an order that a program goes through once. A bundle that is not used again is evicted for the next ones.
    /// A bundle of the order that is on the device already stays until it is used, if two bundles fit beside it.
    UploadOrder follow_once(std::span<const Bundle> bundles);

    /// Gives the memory of all tensors without a lease back to the device, and stops prefetches and the order. Copies
    /// nothing to the host: the tensors come back from the host tier, or from their files. Returns how many bytes
    /// leases keep on the device. Tensors can be acquired while the uploader sleeps.
    ///
    /// With UploadOptions::keep_addresses, each bundle that this takes from the device comes next at the address that
    /// it had, whether wake(), acquire() or a prefetch brings it, and however often sleep() is called before it comes.
    /// So CUDA graphs that use it may be launched once it is acquired again. After that it is a bundle like any other:
    /// if it is evicted, it may come back elsewhere. The promise does not hold for bundles that share a slot of an
    /// order, before or after, and for bundles whose last handle ends.
    std::uint64_t sleep();
    /// Starts to upload the bundles that sleep() took from the device, and returns at once. Those of the order that is
    /// followed come first, in that order; then the others, in the order in which they were made.
    void wake();

    /// Evict the bundle, or all bundles that own a selected tensor, and give the memory back to the device. Leased
    /// bundles stay.
    void evict(const Bundle& bundle);
    void evict(const Selection& selection);

    /// Returns the counters so far.
    [[nodiscard]] UploadStats stats() const;

private:
    struct Impl;
    const std::shared_ptr<const device::BundleData>& own(const Bundle& bundle) const;
    std::vector<std::shared_ptr<const device::BundleData>> own(std::span<const Bundle> bundles) const;
    std::unique_ptr<Impl> impl_;
};

/// Returns the XXH3-128 digest (32 hex digits, canonical byte order) of a tensor on a device, which is read back in
/// blocks. Waits for the copies that bring it: those of a lease for a stream may be on their way. The lease must live.
/// The digest is that of the little-endian row-major bytes, so equal values have equal digests on every device and in
/// every format.
[[nodiscard]] SAFEMAP_API std::string digest(Device& device, const DeviceTensor& tensor);

}  // namespace safemap::SAFEMAP_ABI
