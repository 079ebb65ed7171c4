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
#include <vector>

namespace safemap::SAFEMAP_ABI {

class LazyTensor;
struct Request;
template <class Managed> struct LeaseExport;

namespace device {
class Cache;
class Group;
struct Awaited;
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
    /// Returns the address of the value on the device. Null if memory() has none, as in OpenCL, and when the lease has
    /// ended and the tensor is not there any more.
    void* address() const noexcept;
    /// Returns the value as this process can write to it; empty if the host cannot, and for a tensor without elements.
    /// Empty, too, when the lease has ended and the tensor is not there any more.
    std::span<std::byte> host_bytes() const noexcept;

private:
    friend class Bundle;
    friend class device::Cache;
    friend std::string digest(Device& device, const DeviceTensor& tensor);
    DeviceTensor(const LazyTensor& tensor, const device::Group& group, std::uint64_t place) noexcept
        : tensor_(&tensor), group_(&group), place_(place) {}

    const LazyTensor* tensor_;
    const device::Group* group_;
    std::uint64_t place_;  // in the memory of the group
};

/// A tensor as each lease of its bundle will have it.
struct BundleTensor {
    std::string name;
    Dtype dtype;
    Shape shape;
    std::uint64_t nbytes;  ///< size of the value in bytes
    /// Number of the piece of memory that holds the tensor. Tensors with the same number are in one piece. It belongs
    /// to the bundle that owns the tensors, which may be another bundle than this one.
    std::size_t owner;
    std::uint64_t offset;  ///< place of the value in that piece, bytes
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
    /// Returns the tensors in the order of Lease::tensors(). The places in memory are known before anything is
    /// uploaded, and are the same in each lease.
    [[nodiscard]] std::vector<BundleTensor> tensors() const;
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

/// The tensors of a bundle, which stay on the device until the lease is released or destroyed. Leases can be moved, not
/// copied. A lease that was moved from, or has ended, has no tensors, and releasing it does nothing. A lease may
/// outlive its Uploader. It must not be used from two threads at once.
///
/// Uploader::acquire() returns a lease whose tensors are there. Uploader::request() returns one whose tensors may be on
/// their way: it has no tensors until wait() has returned, and it holds their memory from the beginning on.
///
/// A lease that was acquired on a stream, or waited for on one, is for the work of that stream: its tensors may still
/// be on their way, but all work that is put into the stream from then on happens after they have arrived. Otherwise
/// the tensors are there.
///
/// While a stream is captured into a CUDA graph, its work does not run, so nothing can be ordered before it. Then
/// acquire() waits until the tensors are there. Release the lease after the last launch of the graph.
///
/// Example:
///     safemap::Bundle expert = uploader.bundle(safemap::Selection::prefix("mlp.experts.7"));
///     safemap::Lease lease = uploader.request(expert, {.priority = 1});
///     lease.wait();  // after work for the experts that are there
///     for (const safemap::DeviceTensor& one : lease.tensors()) use(one.address(), one.nbytes());
class [[nodiscard]] SAFEMAP_API Lease {
public:
    Lease() noexcept = default;
    Lease(Lease&& other) noexcept = default;
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

    /// Returns true if wait() would not block: the tensors are on the device, the upload failed, the deadline of the
    /// request has passed or a stop was requested, or there is no upload any more. Without reader threads, does at most
    /// one job of the upload.
    [[nodiscard]] bool ready() const noexcept;
    /// Blocks until the tensors are on the device. With a stream: until they are read and their copies queued, and lets
    /// the work that is put into the stream from now on happen after them. Takes part in the reading.
    ///
    /// For a lease of request(), throws what Uploader::acquire() does, the errors of the request, and cancelled if the
    /// uploader was destroyed; then the lease has ended. Throws device_failed, and invalid_argument for a lease that
    /// has ended, and for a second stream: its work and that of the first one have no common end.
    void wait(NativeStream stream = {});

    /// Ends the lease. Its tensors may be evicted when other tensors need the memory: at once, or if the lease is for a
    /// stream, when the work that is in that stream is done. If the stream is being captured at this moment, the
    /// tensors stay on the device until the uploader is destroyed, because the graph may use them at any time. If
    /// wait() was not called, cancels the upload, unless another lease wants it.
    void release() noexcept;
    /// Ends the lease. Its tensors may be evicted when the work that is in `stream` is done. Throws invalid_argument,
    /// and keeps the lease, if the device has no streams of this kind, or the stream is being captured.
    void release(NativeStream stream);

private:
    template <class Managed> friend struct LeaseExport;
    friend class Uploader;
    friend class UploadOrder;
    explicit Lease(std::shared_ptr<const device::BundleData> data,
                   std::shared_ptr<device::Awaited> awaited = nullptr) noexcept
        : data_(std::move(data)), awaited_(std::move(awaited)) {}
    static Lease acquired(const std::shared_ptr<const device::BundleData>& data, NativeStream stream,
                          const Request& request);
    static Lease ordered(std::shared_ptr<const device::BundleData> data, NativeStream stream, NativeStream orderable,
                         const Request& request);
    bool has(const DeviceTensor& tensor) const noexcept;
    std::shared_ptr<const device::BundleData> data_;
    /// Null if the tensors are there. Not shared: a std::unique_ptr could not be moved here, where its type is unknown.
    std::shared_ptr<device::Awaited> awaited_;
    NativeStream stream_ = {};
};

}  // namespace safemap::SAFEMAP_ABI
