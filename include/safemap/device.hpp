// A device with memory of its own. `host` is main memory, for servers without a GPU and for tests; OpenCL and CUDA
// come later behind the same interface. The Uploader (uploader.hpp) is what most callers want.
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

/// Memory on a device; freed with its last owner.
class SAFEMAP_API DeviceMemory {
public:
    virtual ~DeviceMemory() = default;
    virtual std::uint64_t size() const noexcept = 0;
    /// What kernels and libraries take: an address for host and CUDA, a cl_mem for OpenCL.
    virtual void* handle() const noexcept = 0;
    /// The same memory as this process can write it; empty where it cannot. Where it can, readers pread straight
    /// into it and nothing is staged.
    virtual std::span<std::byte> host_bytes() const noexcept { return {}; }
};

/// Host memory that a device copies from at full speed (page-locked, where the device can).
class SAFEMAP_API StagingBuffer {
public:
    virtual ~StagingBuffer() = default;
    virtual std::span<std::byte> bytes() const noexcept = 0;
};

/// A point in a device's queue of copies.
class SAFEMAP_API DeviceEvent {
public:
    virtual ~DeviceEvent() = default;
    /// Whether everything before it is done. Never blocks.
    virtual bool done() const = 0;
    /// Blocks until it is. Throws io_error where the device failed.
    virtual void wait() const = 0;
};

/// One device. Implementations are thread safe. Copies of one queue happen in order.
class SAFEMAP_API Device {
public:
    virtual ~Device() = default;
    /// "host"; later "opencl:N", "cuda:N". Throws no_such_device, with what there is.
    static std::shared_ptr<Device> open(std::string_view name);

    virtual const std::string& name() const noexcept = 0;
    /// Bytes that could be allocated now.
    virtual std::uint64_t free_memory() const = 0;
    /// What addresses of separate tensors should be multiples of.
    virtual std::size_t alignment() const noexcept = 0;

    /// Throws out_of_memory.
    virtual std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) = 0;
    /// Throws out_of_memory.
    virtual std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) = 0;

    /// Queues a copy of staging bytes `from` to `to` at `offset`; returns at once. The staging buffer must stay
    /// untouched until the event is done.
    virtual std::shared_ptr<DeviceEvent> copy_to_device(const std::shared_ptr<DeviceMemory>& to, std::uint64_t offset,
                                                        const std::shared_ptr<StagingBuffer>& from, Extent part) = 0;
    /// Copies back, blocking: for verification.
    virtual void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) = 0;
};

}  // namespace safemap::SAFEMAP_ABI
