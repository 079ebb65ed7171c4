// Device: the interface to a device with its own memory. "host" is main memory, for servers without a GPU and for
// tests; OpenCL and CUDA will implement the same interface. Most callers use Uploader (uploader.hpp).
#pragma once

#include <safemap/api.hpp>
#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Memory on a device. It is freed with its last owner.
class SAFEMAP_API DeviceMemory {
public:
    virtual ~DeviceMemory() = default;
    /// Returns the size in bytes.
    virtual std::uint64_t size() const noexcept = 0;
    /// Returns the handle that kernels and libraries take: an address for host and CUDA, a cl_mem for OpenCL.
    virtual void* handle() const noexcept = 0;
    /// Returns the memory as this process can write to it, or an empty span if it cannot. If it is not empty, an
    /// Uploader reads files directly into it, without staging.
    virtual std::span<std::byte> host_bytes() const noexcept { return {}; }
};

/// Host memory that a device copies from at full speed; page-locked if the device supports that.
class SAFEMAP_API StagingBuffer {
public:
    virtual ~StagingBuffer() = default;
    virtual std::span<std::byte> bytes() const noexcept = 0;
};

/// A position in a device's queue of copies.
class SAFEMAP_API DeviceEvent {
public:
    virtual ~DeviceEvent() = default;
    /// Returns true if all copies before this position are done. Never blocks.
    virtual bool done() const = 0;
    /// Blocks until all copies before this position are done. Throws io_error if the device failed.
    virtual void wait() const = 0;
};

/// Rows of equal size, at equal distances in a staging buffer and at equal distances in device memory. All numbers but
/// `rows` are bytes. Rows do not overlap: each pitch is at least `row_bytes`.
struct RowCopy {
    std::uint64_t to = 0;          ///< offset of the first row in the device memory
    std::uint64_t to_pitch = 0;    ///< distance of the rows there
    std::uint64_t from = 0;        ///< offset of the first row in the staging buffer
    std::uint64_t from_pitch = 0;  ///< distance of the rows there
    std::uint64_t row_bytes = 0;
    std::uint64_t rows = 0;  ///< number of rows, at least 1
};

/// One device. Derive from Device to upload to other kinds of memory. Implementations are thread-safe. Copies of one
/// queue happen in order.
///
/// Example:
///     std::shared_ptr<safemap::Device> host = safemap::Device::open("host");
///     std::shared_ptr<safemap::DeviceMemory> memory = host->allocate(4_MiB);
///     std::cout << host->name() << ": " << host->free_memory() << " bytes free\n";
class SAFEMAP_API Device {
public:
    virtual ~Device() = default;
    /// Opens the device with this name: "host"; later "opencl:N" and "cuda:N". Throws no_such_device, which lists the
    /// available devices.
    static std::shared_ptr<Device> open(std::string_view name);

    virtual const std::string& name() const noexcept = 0;
    /// Returns the number of bytes that could be allocated now.
    virtual std::uint64_t free_memory() const = 0;

    /// Allocates `size` bytes on the device; the result has exactly this size(). The memory is aligned for every use:
    /// to 256 bytes, if `size` is 256 or more. Throws out_of_memory.
    virtual std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) = 0;
    /// Allocates a staging buffer of `size` bytes. Throws out_of_memory.
    virtual std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) = 0;

    /// Queues a copy of the bytes `part` of `from` to `to` at `offset`, and returns an event at once. The staging
    /// buffer must not change until the event is done.
    virtual std::shared_ptr<DeviceEvent> copy_to_device(const std::shared_ptr<DeviceMemory>& to, std::uint64_t offset,
                                                        const std::shared_ptr<StagingBuffer>& from, Extent part) = 0;
    /// Queues one copy of all `rows`, with the same rules.
    virtual std::shared_ptr<DeviceEvent> copy_rows_to_device(const std::shared_ptr<DeviceMemory>& to,
                                                             const std::shared_ptr<StagingBuffer>& from,
                                                             const RowCopy& rows) = 0;
    /// Copies bytes of `from`, starting at `offset`, to the host, and blocks until they are there. Meant for
    /// verification.
    virtual void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) = 0;
};

}  // namespace safemap::SAFEMAP_ABI
