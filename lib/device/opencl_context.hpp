// The inner state of an OpenCL device, which its memory, staging buffers and events share: context, queues, and whether
// the device has failed.
#pragma once

#include "device/opencl_api.hpp"

#include <safemap/device.hpp>
#include <safemap/error.hpp>

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace safemap::SAFEMAP_ABI::device {

class OpenclContext {
public:
    /// Makes queues in `context` for `device`, which the context has. Retains both. Throws device_failed.
    OpenclContext(const OpenclApi& api, ClContext context, ClDevice device, std::string name);
    ~OpenclContext();
    OpenclContext(const OpenclContext&) = delete;
    OpenclContext& operator=(const OpenclContext&) = delete;

    const OpenclApi& api() const noexcept { return api_; }
    const std::string& name() const noexcept { return name_; }
    ClContext context() const noexcept { return context_; }
    /// Returns the queue of copies of a lane.
    ClQueue queue(Device::Lane lane) const noexcept { return lane == Device::Lane::demand ? demand_ : bulk_; }
    /// Returns the queue of allocations, mappings and copies to the host.
    ClQueue side_queue() const noexcept { return side_; }
    std::uint64_t largest_allocation() const noexcept { return largest_allocation_; }
    std::uint64_t total_memory() const noexcept { return total_memory_; }

    /// Returns true if no function of OpenCL may be called any more: the device failed, or this is a child of the
    /// process that opened it.
    bool is_lost() const noexcept;
    /// Returns true if this is a child of the process that opened the device.
    bool is_child() const noexcept;
    /// Throws device_failed if is_lost().
    void require_working() const;
    /// If `result` is an error: notes that the device failed, and throws device_failed. `call` is a literal.
    void check(ClResult result, const char* call);
    /// Notes that the device failed. Only the first failure is kept.
    void note_failure(ClResult result, const char* call) noexcept;

    /// Bytes of device memory that exist now.
    std::atomic<std::uint64_t> allocated = 0;

private:
    ClQueue make_queue();
    std::uint64_t number(ClDeviceInfo info) const;
    void release() noexcept;

    const OpenclApi& api_;
    const std::string name_;
    const ::pid_t process_;
    const ClContext context_;
    const ClDevice device_;
    ClQueue demand_ = nullptr;
    ClQueue bulk_ = nullptr;
    ClQueue side_ = nullptr;
    std::uint64_t largest_allocation_ = 0;
    std::uint64_t total_memory_ = 0;

    std::atomic<bool> failed_ = false;
    mutable std::mutex mutex_;  // guards the two below
    ClResult failure_ = ClResult::success;
    const char* failed_call_ = "";
};

/// Returns the error for a call that failed on a device.
Error opencl_failure(const std::string& device, ClResult result, const char* call);

}  // namespace safemap::SAFEMAP_ABI::device
