// The inner state of an OpenCL device, which its memory, staging buffers and events share: context, queues, and whether
// the device has failed.
#pragma once

#include "drivers/backend.hpp"
#include "drivers/opencl_api.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/error.hpp>

#include <atomic>
#include <cstdint>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {

class OpenclContext final : public DeviceHealth {
public:
    /// Makes queues in `context` for `device`, which the context has. Retains both. Throws device_failed.
    OpenclContext(const OpenclApi& api, ClContext context, ClDevice device, std::string name);
    ~OpenclContext() override;

    const OpenclApi& api() const noexcept { return api_; }
    ClContext context() const noexcept { return context_; }
    /// Returns the queue of copies of a lane.
    ClQueue queue(Device::Lane lane) const noexcept { return lane == Device::Lane::demand ? demand_ : bulk_; }
    /// Returns the queue of allocations, mappings and copies to the host.
    ClQueue side_queue() const noexcept { return side_; }
    std::uint64_t largest_allocation() const noexcept { return largest_allocation_; }
    std::uint64_t total_memory() const noexcept { return total_memory_; }
    /// Returns true if the device uses the memory of the host.
    bool has_unified_memory() const noexcept { return has_unified_memory_; }
    /// Returns true if the device is a processor: usually the one of the host.
    bool is_cpu() const noexcept { return is_cpu_; }

    /// If `result` is an error: throws invalid_argument for one that is_about_the_call(); otherwise notes that the
    /// device failed, and throws device_failed. `call` is a literal.
    void check(ClResult result, const char* call);
    void note_failure(ClResult result, const char* call) noexcept {
        DeviceHealth::note_failure(static_cast<int>(result), call);
    }

    /// Bytes of device memory that exist now.
    std::atomic<std::uint64_t> allocated = 0;

private:
    ClQueue make_queue();
    template <class Value> Value ask(ClDeviceInfo info);
    void release() noexcept;
    std::string words_of(int result) const override { return text(static_cast<ClResult>(result)); }

    const OpenclApi& api_;
    const ClContext context_;
    const ClDevice device_;
    ClQueue demand_ = nullptr;
    ClQueue bulk_ = nullptr;
    ClQueue side_ = nullptr;
    std::uint64_t largest_allocation_ = 0;
    std::uint64_t total_memory_ = 0;
    bool has_unified_memory_ = false;
    bool is_cpu_ = false;
};

}  // namespace safemap::SAFEMAP_ABI::drivers
