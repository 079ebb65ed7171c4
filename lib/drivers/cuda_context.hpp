// The inner state of a CUDA device, which its memory, staging buffers and events share: the context, the streams, the
// pools of memory and events, and whether the device has failed.
#pragma once

#include "drivers/backend.hpp"
#include "drivers/cuda_api.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::drivers {

class CudaContext final : public DeviceHealth {
public:
    /// Retains the primary context of a device, the one that other CUDA libraries of the process use, and makes
    /// streams. Throws out_of_memory or device_failed.
    static std::shared_ptr<CudaContext> open(const CudaApi& api, int ordinal);
    ~CudaContext() override;

    const CudaApi& api() const noexcept { return api_; }
    /// Returns the stream of a queue.
    CuStream stream(Device::Lane lane) const noexcept { return lane == Device::Lane::demand ? demand_ : bulk_; }
    /// Returns the stream of allocations and of copies to the host.
    CuStream side_stream() const noexcept { return side_; }
    /// Returns the pool of the device memory, or null if the driver has no pools.
    CuMemoryPool pool() const noexcept { return pool_; }
    /// Returns the memory that reserved addresses get.
    CuMemoryLocation location() const noexcept { return {.id = device_}; }
    /// Returns the bytes of which memory at reserved addresses is a multiple. Throws invalid_argument if the driver or
    /// the device has no virtual memory.
    std::uint64_t granularity();
    std::uint64_t max_pitch() const noexcept { return max_pitch_; }
    std::uint64_t total_memory() const noexcept { return total_memory_; }

    /// If `result` is an error: throws invalid_argument for one that is_about_the_call(); otherwise notes that the
    /// device failed, and throws device_failed. `call` is a literal.
    void check(CuResult result, const char* call);
    void note_failure(CuResult result, const char* call) noexcept {
        DeviceHealth::note_failure(static_cast<int>(result), call);
    }

    /// Returns an event that nobody uses. The context is current.
    CuEvent take_event();
    void give_event(CuEvent event) noexcept;

private:
    friend class CudaEntry;

    CudaContext(const CudaApi& api, int ordinal);
    void start(int ordinal);
    void make_pool();
    std::string words_of(int result) const override { return api_.text(static_cast<CuResult>(result)); }
    /// As check(), but does not note a failure: what was made so far can be given back.
    void require(CuResult result, const char* call) const;

    const CudaApi& api_;
    CuDevice device_ = 0;
    CuContext context_ = nullptr;
    CuStream demand_ = nullptr;
    CuStream bulk_ = nullptr;
    CuStream side_ = nullptr;
    CuMemoryPool pool_ = nullptr;
    std::uint64_t max_pitch_ = 0;
    std::uint64_t total_memory_ = 0;
    bool opened_ = false;  // if not, all that exists is given back even after a failure

    std::mutex mutex_;  // guards the two below
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

}  // namespace safemap::SAFEMAP_ABI::drivers
