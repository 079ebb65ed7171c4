// The inner state of a CUDA device, which its memory, staging buffers and events share: the context, the streams, the
// pools of memory and events, and whether the device has failed.
#pragma once

#include "device/cuda_api.hpp"

#include <safemap/device.hpp>

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

class CudaContext {
public:
    /// Retains the primary context of a device, the one that other CUDA libraries of the process use, and makes
    /// streams. Throws out_of_memory or device_failed.
    static std::shared_ptr<CudaContext> open(const CudaApi& api, int ordinal);
    ~CudaContext();
    CudaContext(const CudaContext&) = delete;
    CudaContext& operator=(const CudaContext&) = delete;

    const CudaApi& api() const noexcept { return api_; }
    const std::string& name() const noexcept { return name_; }
    /// Returns the stream of a queue.
    CuStream stream(Device::Lane lane) const noexcept { return lane == Device::Lane::demand ? demand_ : bulk_; }
    /// Returns the stream of allocations and of copies to the host.
    CuStream side_stream() const noexcept { return side_; }
    /// Returns the pool of the device memory, or null if the driver has no pools.
    CuMemoryPool pool() const noexcept { return pool_; }
    std::uint64_t max_pitch() const noexcept { return max_pitch_; }
    std::uint64_t total_memory() const noexcept { return total_memory_; }

    /// Returns true if no function of the driver may be called any more: the device failed, or this is a child of the
    /// process that opened it.
    bool is_lost() const noexcept;
    /// Throws device_failed if is_lost().
    void require_working() const;
    /// If `result` is an error: notes that the device failed, and throws device_failed. `call` is a literal.
    void check(CuResult result, const char* call);
    /// Notes that the device failed. Only the first failure is kept.
    void note_failure(CuResult result, const char* call) noexcept;

    /// Returns an event that nobody uses. The context is current.
    CuEvent take_event();
    void give_event(CuEvent event) noexcept;
    /// Bytes of device memory that exist now.
    std::atomic<std::uint64_t> allocated = 0;

private:
    friend class CudaEntry;

    CudaContext(const CudaApi& api, int ordinal);
    void start(int ordinal);
    void make_pool();
    bool is_child() const noexcept;
    /// As check(), but does not note a failure: what was made so far can be given back.
    void require(CuResult result, const char* call) const;

    const CudaApi& api_;
    const std::string name_;
    const ::pid_t process_;
    CuDevice device_ = 0;
    CuContext context_ = nullptr;
    CuStream demand_ = nullptr;
    CuStream bulk_ = nullptr;
    CuStream side_ = nullptr;
    CuMemoryPool pool_ = nullptr;
    std::uint64_t max_pitch_ = 0;
    std::uint64_t total_memory_ = 0;
    bool opened_ = false;  // if not, all that exists is given back even after a failure

    std::atomic<bool> failed_ = false;
    mutable std::mutex mutex_;  // guards everything below
    CuResult failure_ = CuResult::success;
    const char* failed_call_ = "";
    std::vector<CuEvent> free_events_;
    std::size_t events_ = 0;  // number of all events
};

/// Makes a context current on this thread as long as it lives. Calls of this thread do not end a CUDA graph that
/// another thread captures meanwhile.
class CudaEntry {
public:
    enum class If : bool { working, retained };

    /// Throws device_failed if the device does not work; with If::retained only if the context cannot become current,
    /// or is another process's.
    explicit CudaEntry(CudaContext& context, If condition = If::working);
    ~CudaEntry();
    CudaEntry(const CudaEntry&) = delete;
    CudaEntry& operator=(const CudaEntry&) = delete;

private:
    CudaContext& context_;
    CuCaptureMode mode_ = CuCaptureMode::relaxed;  // after the constructor: the one of before
};

}  // namespace safemap::SAFEMAP_ABI::device
