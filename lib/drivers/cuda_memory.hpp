// Memory of a CUDA device, and staging buffers that it copies from.
#pragma once

#include "drivers/cuda_context.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI::drivers {

class CudaMemory final : public DeviceMemory {
public:
    /// Throws out_of_memory.
    CudaMemory(std::shared_ptr<CudaContext> context, std::uint64_t size);
    ~CudaMemory() override;
    std::uint64_t size() const noexcept override { return size_; }
    void* handle() const noexcept override;

private:
    CuResult allocate();
    void free();

    const std::shared_ptr<CudaContext> context_;
    const std::uint64_t size_;
    CuPointer address_ = 0;
};

/// Memory that comes and goes at addresses that stay.
class CudaReserved final : public DeviceMemory {
public:
    /// Has no memory at first. Throws out_of_memory, and invalid_argument as CudaContext::granularity().
    CudaReserved(std::shared_ptr<CudaContext> context, std::uint64_t size);
    ~CudaReserved() override;
    std::uint64_t size() const noexcept override { return size_; }
    void* handle() const noexcept override;
    bool can_decommit() const noexcept override { return true; }
    void decommit() override;
    void commit() override;

private:
    /// Throws out_of_memory, or as CudaContext::check().
    void require(CuResult result, const char* call) const;
    CuResult map();

    const std::shared_ptr<CudaContext> context_;
    std::uint64_t size_;
    CuPointer address_ = 0;
    bool committed_ = false;
};

/// Memory that a caller allocated, and frees.
class CudaBorrowed final : public DeviceMemory {
public:
    CudaBorrowed(void* handle, std::uint64_t size) noexcept : handle_(handle), size_(size) {}
    std::uint64_t size() const noexcept override { return size_; }
    void* handle() const noexcept override { return handle_; }

private:
    void* const handle_;
    const std::uint64_t size_;
};

/// Page-locked memory; ordinary memory if the driver refuses to lock it.
class CudaStaging final : public StagingBuffer {
public:
    /// The memory is locked in pieces of this size. One copy reads from one piece.
    static constexpr std::uint64_t piece = 32 << 20;

    CudaStaging(std::shared_ptr<CudaContext> context, std::uint64_t size);
    ~CudaStaging() override;
    std::span<std::byte> bytes() const noexcept override { return {memory_, size_}; }

private:
    void lock_pages();
    void unlock_pages();

    const std::shared_ptr<CudaContext> context_;
    const std::uint64_t size_;
    std::byte* memory_ = nullptr;
    std::uint64_t locked_ = 0;  // bytes from the beginning
};

}  // namespace safemap::SAFEMAP_ABI::drivers
