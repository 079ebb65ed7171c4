// Copies to a CUDA device, and positions in its streams.
#pragma once

#include "drivers/cuda_context.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace safemap::SAFEMAP_ABI::drivers {

class CudaEvent final : public DeviceEvent {
public:
    /// Records the position after all work that is in `stream`. The context is current.
    CudaEvent(std::shared_ptr<CudaContext> context, CuStream stream);
    ~CudaEvent() override { context_->give_event(event_); }
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    bool done() const override;
    bool wait_until(std::chrono::steady_clock::time_point deadline) const override;
    /// Lets work that is put into `stream` from now on happen after this position. The context of the stream is
    /// current. Returns the driver's answer.
    CuResult put_before(CuStream stream) const;
    /// Returns the driver's answer to the recording.
    CuResult recorded() const noexcept { return recorded_; }

private:
    void wait_for_driver() const;

    const std::shared_ptr<CudaContext> context_;
    const CuEvent event_;
    const CuResult recorded_;
    mutable std::atomic<bool> done_ = false;
};

/// Returns an event for which a stream can wait: one of this device, or of another CUDA device. Waits on the host for
/// any other event, and returns null. Throws device_failed.
const CudaEvent* cuda_event(const CudaContext& context, const DeviceEvent& event);

/// Copies in a stream of our own.
class CudaQueue final : public DeviceQueue {
public:
    CudaQueue(std::shared_ptr<CudaContext> context, Device::Lane lane);
    void copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) override;
    void copy_rows(DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) override;
    std::shared_ptr<DeviceEvent> record() override;
    void wait_for(const DeviceEvent& event) override;
    void run(const std::function<void(NativeStream)>& work) override;
    void drain() noexcept override;

private:
    void copy_range(CuPointer to, const StagingBuffer& from, Extent part);

    const std::shared_ptr<CudaContext> context_;
    const CuStream stream_;
};

}  // namespace safemap::SAFEMAP_ABI::drivers
