// Bundle: tensors that come to a device and leave it together; DeviceTensor and Lease: those tensors while they are
// there.
#pragma once

#include <safemap/device.hpp>
#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI {

class LazyTensor;
struct Request;
template <class Managed> struct LeaseExport;

namespace device {
class Cache;
class Group;
struct BundleData;
}  // namespace device

/// A tensor on a device, row-major. Describes memory that a Lease holds: valid while that lease lives. The memory is
/// neither moved nor overwritten in that time. Tensors that came together share a block of memory, so the place of a
/// tensor is a block and an offset.
class SAFEMAP_API DeviceTensor {
public:
    /// Returns the name that was requested.
    const std::string& name() const noexcept;
    Dtype dtype() const noexcept;
    const Shape& shape() const noexcept;
    /// Returns the size of the value in bytes.
    std::uint64_t nbytes() const noexcept;

    /// Returns the block of device memory that has the value. A copy of the pointer does not keep the value there: only
    /// the lease does.
    const std::shared_ptr<DeviceMemory>& memory() const noexcept;
    /// Returns the place of the value in memory(), in bytes. memory() and the place together are aligned to 256 bytes,
    /// or to 64 bytes if the tensor is smaller than 256 bytes and came alone.
    std::uint64_t offset() const noexcept;
    /// Returns the value as this process can write to it; empty if the host cannot, and for a tensor without elements.
    /// Empty, too, when the lease has ended and the tensor is not there any more.
    std::span<std::byte> host_bytes() const noexcept;

private:
    friend class device::Cache;
    friend std::string digest(Device& device, const DeviceTensor& tensor);
    DeviceTensor(const LazyTensor& tensor, const device::Group& group, std::uint64_t place) noexcept
        : tensor_(&tensor), group_(&group), place_(place) {}

    const LazyTensor* tensor_;
    const device::Group* group_;
    std::uint64_t place_;  // in the memory of the group
};

/// A prepared selection: tensors that come to a device and leave it together, such as a layer, an expert, or one
/// tensor. Their places in device memory and the reads that fill it are worked out once, by Uploader::bundle(). A
/// Bundle is a handle: copies stand for the same tensors, are cheap, and may be used from several threads at once.
///
/// The first bundle that names a tensor owns it, and its memory holds that tensor. If a later bundle names a tensor
/// that another one owns, under any tied name, it leases all tensors of that other bundle with its own, and counts
/// them.
///
/// Example:
///     safemap::Bundle layer = uploader.bundle(safemap::Selection::prefix("model.layers.1"));
///     std::cout << layer.size() << " tensors take " << layer.device_bytes() << " bytes of the device\n";
class [[nodiscard]] SAFEMAP_API Bundle {
public:
    /// Makes a handle of no bundle, which has no tensors. An Uploader throws invalid_argument for it, and for a handle
    /// that was moved from.
    Bundle() noexcept = default;

    /// Returns the number of tensors that a lease has.
    std::size_t size() const noexcept;
    /// Returns the bytes of device memory that a lease holds: all tensors, each at a multiple of 256 bytes, and all
    /// tensors of the bundles that own some of them.
    std::uint64_t device_bytes() const noexcept;

private:
    friend class device::Cache;
    friend class Lease;
    friend class Uploader;
    explicit Bundle(std::shared_ptr<const device::BundleData> data) noexcept : data_(std::move(data)) {}
    std::shared_ptr<const device::BundleData> data_;
};

/// The result of Uploader::acquire(): the tensors of a bundle, which stay on the device until the lease is released or
/// destroyed. Leases can be moved, not copied. A lease that was moved from, or has ended, has no tensors, and releasing
/// or waiting for it does nothing. A lease may outlive its Uploader. It must not be used from two threads
/// at once.
///
/// A lease that was acquired on a stream is for the work of that stream: its tensors may still be on their way, but all
/// work that is put into the stream from then on happens after they have arrived. A lease that was acquired without a
/// stream has tensors that are there.
///
/// A stream that is being captured into a CUDA graph is no place in time. Then acquire() waits until the tensors are
/// there. The graph may be launched as long as the lease lives, so release the lease after the last launch.
///
/// Example:
///     safemap::Lease lease = uploader.acquire("wte.weight");
///     const safemap::DeviceTensor& weight = lease["wte.weight"];
///     use(weight.memory()->handle(), weight.offset(), weight.nbytes());
class [[nodiscard]] SAFEMAP_API Lease {
public:
    Lease() noexcept = default;
    Lease(Lease&& other) noexcept : data_(std::move(other.data_)), stream_(other.stream_) {}
    Lease& operator=(Lease&& other) noexcept;
    /// Does the same as release().
    ~Lease() { release(); }

    /// Returns the tensors, in the order in which they were requested. The span is valid until the lease ends.
    std::span<const DeviceTensor> tensors() const& noexcept;
    std::span<const DeviceTensor> tensors() const&& = delete;
    /// Returns the tensor with this name. Throws tensor_not_found, and invalid_argument if `name` is null. Takes
    /// logarithmic time; the first call for a bundle sorts its names.
    const DeviceTensor& operator[](std::string_view name) const&;
    const DeviceTensor& operator[](std::string_view name) const&& = delete;
    const DeviceTensor& operator[](const char* name) const&;
    const DeviceTensor& operator[](const char* name) const&& = delete;
    /// Blocks until the tensors are on the device. Throws device_failed.
    void wait() const;

    /// Ends the lease. Its tensors may be evicted when other tensors need the memory: at once, or if the lease was
    /// acquired on a stream, when the work that is in that stream is done. If the stream is being captured at this
    /// moment, the tensors stay on the device until the uploader is destroyed, because nobody says how long the graph
    /// lives.
    void release() noexcept;
    /// Ends the lease. Its tensors may be evicted when the work that is in `stream` is done. Throws invalid_argument,
    /// and keeps the lease, if the device has no streams of this kind, or the stream is being captured.
    void release(NativeStream stream);

private:
    template <class Managed> friend struct LeaseExport;
    friend class Ticket;
    friend class Uploader;
    explicit Lease(std::shared_ptr<const device::BundleData> data) noexcept : data_(std::move(data)) {}
    static Lease ordered(std::shared_ptr<const device::BundleData> data, NativeStream stream, NativeStream orderable,
                         const Request& request);
    bool has(const DeviceTensor& tensor) const noexcept;
    std::shared_ptr<const device::BundleData> data_;
    NativeStream stream_ = {};
};

}  // namespace safemap::SAFEMAP_ABI
