// Memory of an OpenCL device, and host memory that it copies from.
#pragma once

#include "drivers/opencl_context.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI::drivers {

/// A buffer of OpenCL. OpenCL has no empty ones: memory of 0 bytes has the handle null, which kernels accept.
class OpenclMemory final : public DeviceMemory {
public:
    /// Allocates a buffer.
    OpenclMemory(std::shared_ptr<OpenclContext> context, std::uint64_t size);
    /// Takes the first `size` bytes of a buffer of the caller, and retains it. Throws invalid_argument if it is not a
    /// buffer of this context, or smaller.
    OpenclMemory(std::shared_ptr<OpenclContext> context, ClMemory buffer, std::uint64_t size);
    ~OpenclMemory() override;
    OpenclMemory(const OpenclMemory&) = delete;
    OpenclMemory& operator=(const OpenclMemory&) = delete;

    std::uint64_t size() const noexcept override { return size_; }
    void* handle() const noexcept override { return memory_; }
    bool has_address() const noexcept override { return false; }
    bool can_be_mapped() const noexcept override { return size_ > 0 && context_->has_unified_memory(); }
    ClMemory memory() const noexcept { return memory_; }
    const OpenclContext& context() const noexcept { return *context_; }

private:
    ClResult allocate();
    ClResult allocate_on_device();
    ClResult allocate_in_huge_pages();
    [[noreturn]] void throw_out_of_memory(ClResult result) const;

    const std::shared_ptr<OpenclContext> context_;
    const std::uint64_t size_;
    bool counted_ = false;  // in the context
    ClMemory memory_ = nullptr;
};

/// A buffer in memory that the implementation allocates, which is page-locked if the device supports that. It is mapped
/// as long as it exists.
class OpenclStaging final : public StagingBuffer {
public:
    OpenclStaging(std::shared_ptr<OpenclContext> context, std::uint64_t size);
    ~OpenclStaging() override;
    OpenclStaging(const OpenclStaging&) = delete;
    OpenclStaging& operator=(const OpenclStaging&) = delete;

    std::span<std::byte> bytes() const noexcept override { return bytes_; }

private:
    const std::shared_ptr<OpenclContext> context_;
    ClMemory memory_ = nullptr;
    std::span<std::byte> bytes_;
};

}  // namespace safemap::SAFEMAP_ABI::drivers
