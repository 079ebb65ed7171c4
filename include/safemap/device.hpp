// Device: the interface to a device with its own memory. "host" is main memory, for servers without a GPU and for
// tests; CUDA and OpenCL implement the same interface. Most callers use Uploader (uploader.hpp).
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

// safemap/advanced/device_backend.hpp has these.
class DeviceEvent;
class DeviceQueue;
class StagingBuffer;

/// Memory on a device. It is freed with its last owner.
class SAFEMAP_API DeviceMemory {
public:
    virtual ~DeviceMemory() = default;
    /// Returns the size in bytes.
    virtual std::uint64_t size() const noexcept = 0;
    /// Returns the handle that kernels and libraries take: an address for host and CUDA, a cl_mem for OpenCL. A kernel
    /// of OpenCL takes an offset in bytes as another argument.
    virtual void* handle() const noexcept = 0;
    /// Returns true if handle() is the address of the first byte.
    virtual bool has_address() const noexcept { return true; }
    /// Returns the memory as this process can write to it, or an empty span if it cannot. If it is not empty, an
    /// Uploader reads files directly into it, without staging, when no work that is queued may still use it.
    virtual std::span<std::byte> host_bytes() const noexcept { return {}; }
    /// Returns true if DeviceQueue::map() gives the host this memory itself. Then an Uploader reads files directly into
    /// the memory of a bundle that shares it with no other one.
    virtual bool can_be_mapped() const noexcept { return false; }

    /// Returns true for memory of Device::reserve(), which decommit() and commit() may be called for.
    virtual bool can_decommit() const noexcept { return false; }
    /// Gives the memory back to the device, and keeps its addresses. The caller makes sure that no work which uses the
    /// memory is in progress. Does nothing without memory. Throws invalid_argument unless can_decommit(), and
    /// device_failed. One thread at a time calls this and commit().
    virtual void decommit();
    /// Allocates the memory at its addresses; its contents are undefined. Does nothing if it is there. Throws
    /// invalid_argument unless can_decommit(), out_of_memory, and device_failed.
    virtual void commit();
};

/// A stream of the caller: a queue in which a program puts its kernels. Safemap orders its copies before and after
/// them, and neither keeps the stream nor destroys it.
///
/// Example:
///     safemap::NativeStream kernels = safemap::NativeStream::cuda(nullptr);  // the legacy default stream
///     safemap::Lease lease = uploader.acquire(uploader.bundle("wte.weight"), kernels);
///     use(lease["wte.weight"].address());  // kernels that are launched now wait for the copies
///     lease.release(kernels);              // the memory is free after them
struct NativeStream {
    enum class Kind : std::uint8_t { none, cuda, opencl };

    Kind kind = Kind::none;
    void* handle = nullptr;

    /// A CUstream or cudaStream_t. Null is the legacy default stream.
    [[nodiscard]] static NativeStream cuda(void* stream) noexcept { return {Kind::cuda, stream}; }
    /// A cl_command_queue.
    [[nodiscard]] static NativeStream opencl(void* queue) noexcept { return {Kind::opencl, queue}; }
    /// Returns true if this is a stream.
    explicit operator bool() const noexcept { return kind != Kind::none; }
    bool operator==(const NativeStream&) const noexcept = default;
};

/// One device. Derive from Device to upload to other kinds of memory: safemap/advanced/device_backend.hpp has the other
/// classes that takes. Implementations are thread-safe.
///
/// When a call fails because the device failed, it throws device_failed, and so does every later call. What the device
/// still does then is unknown, so memory that it might use is not freed.
///
/// Example:
///     std::shared_ptr<safemap::Device> host = safemap::Device::open("host");
///     std::shared_ptr<safemap::DeviceMemory> memory = host->allocate(4_MiB);
///     std::cout << host->name() << ": " << host->free_memory() << " bytes free\n";
class SAFEMAP_API Device {
public:
    virtual ~Device() = default;
    /// Opens the device with this name: "host", "cuda:N" or "opencl:N". Throws no_such_device, which lists the
    /// available devices.
    [[nodiscard]] static std::shared_ptr<Device> open(std::string_view name);
    /// Does the same. Throws invalid_argument for null, which std::getenv() returns.
    [[nodiscard]] static std::shared_ptr<Device> open(const char* name);
    /// Uses a device of OpenCL in a context of the caller, so that the caller's queues and safemap's can wait for each
    /// other. `context` is a cl_context, and `device` a cl_device_id that it has. Both are retained, and released with
    /// the last owner of the returned device, of its memory, staging buffers and events. So the caller may release them
    /// at once. Throws invalid_argument if the context does not have the device, and no_such_device if OpenCL does not
    /// work or the device is older than OpenCL 1.2.
    [[nodiscard]] static std::shared_ptr<Device> from_opencl(void* context, void* device);

    virtual const std::string& name() const noexcept = 0;
    /// Returns the number of bytes that could be allocated now.
    [[nodiscard]] virtual std::uint64_t free_memory() const = 0;

    /// Allocates `size` bytes on the device; the result has exactly this size(). The memory is aligned for every use:
    /// to 256 bytes, if `size` is 256 or more; a cl_mem, as the device aligns any type of OpenCL. Throws out_of_memory.
    [[nodiscard]] virtual std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) = 0;
    /// Reserves addresses for memory, which DeviceMemory::commit() allocates. The size() of the result is `size`,
    /// rounded up to a multiple of what the device allocates at once: that is reserve(1)->size(). Throws out_of_memory,
    /// and invalid_argument with the reason if the device has no addresses without memory. This implementation always
    /// does.
    [[nodiscard]] virtual std::shared_ptr<DeviceMemory> reserve(std::uint64_t size);
    /// Allocates a staging buffer of `size` bytes. Throws out_of_memory.
    [[nodiscard]] virtual std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) = 0;

    /// The queues of a device. They do not wait for each other: a copy of the one that somebody waits for is not behind
    /// a gigabyte of the other.
    enum class Lane : std::uint8_t { demand, bulk };
    /// Returns a queue, which lives as long as the device.
    [[nodiscard]] virtual DeviceQueue& queue(Lane lane) = 0;

    /// Makes a DeviceMemory of memory that the caller allocated on this device, for Uploader::fill(). It does not own
    /// the memory: the caller keeps that. `handle` is as DeviceMemory::handle() says. Throws invalid_argument for null.
    /// This implementation always does.
    [[nodiscard]] virtual std::shared_ptr<DeviceMemory> borrow(void* handle, std::uint64_t size);

    /// Copies bytes of `from`, starting at `offset`, to the host, and blocks until they are there. Does not wait for
    /// work of the queues or of callers' streams. Meant for verification. If it throws device_failed, the device may
    /// still write to `to`.
    virtual void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) = 0;

    /// Returns the kind of streams that the device can order, or `none`.
    virtual NativeStream::Kind stream_kind() const noexcept { return NativeStream::Kind::none; }
    /// Lets the work that is put into `stream` from now on happen after `event`, without blocking the host. The event
    /// need not be kept. Throws invalid_argument if the stream is of another kind than the device. This implementation
    /// always does.
    virtual void make_wait(NativeStream stream, const DeviceEvent& event);
    /// Returns the position after all work that is in `stream` so far. Throws as make_wait().
    [[nodiscard]] virtual std::shared_ptr<DeviceEvent> record(NativeStream stream);
    /// Returns true if what is put into `stream` is being captured, into a CUDA graph, instead of done. Throws as
    /// make_wait().
    [[nodiscard]] virtual bool is_capturing(NativeStream stream) const;
};

}  // namespace safemap::SAFEMAP_ABI
