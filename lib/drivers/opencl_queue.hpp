// Copies to an OpenCL device, and positions in its queues.
#pragma once

#include "drivers/opencl_context.hpp"

#include <safemap/advanced/device_backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::drivers {

class OpenclEvent final : public DeviceEvent {
public:
    /// Takes over `event`, which is of `context`.
    OpenclEvent(std::shared_ptr<OpenclContext> context, ClEvent event) noexcept;
    ~OpenclEvent() override;
    OpenclEvent(const OpenclEvent&) = delete;
    OpenclEvent& operator=(const OpenclEvent&) = delete;

    bool done() const override;
    bool wait_until(std::chrono::steady_clock::time_point deadline) const override;
    ClEvent event() const noexcept { return event_; }
    const OpenclContext& context() const noexcept { return *context_; }

private:
    void synchronize() const;

    const std::shared_ptr<OpenclContext> context_;
    const ClEvent event_;
    mutable std::atomic<bool> done_ = false;
};

/// Puts a marker behind all work of `queue`, and sends the queue's work to the device. The marker fails if one of
/// `commands` fails.
std::shared_ptr<DeviceEvent> record_opencl(const std::shared_ptr<OpenclContext>& context, ClQueue queue,
                                           std::span<const ClEvent> commands = {});
/// Lets work that is put into `queue` from now on happen after `event`. If the event is not of this context, it waits
/// on the host. If `barrier` is not null and the queue waits, sets it to the event of that command.
void wait_in_opencl(OpenclContext& context, ClQueue queue, const DeviceEvent& event, ClEvent* barrier = nullptr);
/// Returns the buffer of device memory. Throws invalid_argument if it is not of this context.
ClMemory opencl_memory(const OpenclContext& context, const DeviceMemory& memory);

/// Copies in a queue of our own.
class OpenclQueue final : public DeviceQueue {
public:
    OpenclQueue(std::shared_ptr<OpenclContext> context, Device::Lane lane);
    ~OpenclQueue() override;
    OpenclQueue(const OpenclQueue&) = delete;
    OpenclQueue& operator=(const OpenclQueue&) = delete;

    void copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) override;
    void copy_rows(DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) override;
    std::shared_ptr<DeviceEvent> record() override;
    void wait_for(const DeviceEvent& event) override;
    std::span<std::byte> map(DeviceMemory& memory) override;
    void unmap(DeviceMemory& memory, std::span<std::byte> mapped) override;
    void run(const std::function<void(NativeStream)>& work) override { work(NativeStream::opencl(queue_)); }
    void drain() noexcept override;

private:
    void copy_range(ClMemory to, std::uint64_t offset, const StagingBuffer& from, Extent part);
    /// Calls `enqueue` with a place for the event of a command. Returns its result.
    template <class Enqueue> ClResult put(Enqueue&& enqueue);
    void release_commands() noexcept;

    const std::shared_ptr<OpenclContext> context_;
    const ClQueue queue_;
    std::mutex mutex_;
    // Commands since the last record(). In OpenCL, a command that fails does not make the next one of its queue fail.
    std::vector<ClEvent> commands_;
};

}  // namespace safemap::SAFEMAP_ABI::drivers
