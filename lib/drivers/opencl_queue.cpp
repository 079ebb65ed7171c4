// Starts copies to an OpenCL device, maps its memory, and records events.
#include "drivers/opencl_queue.hpp"

#include "drivers/backend.hpp"
#include "drivers/opencl_memory.hpp"

#include <safemap/error.hpp>

#include <cstdint>
#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {

OpenclEvent::OpenclEvent(std::shared_ptr<OpenclContext> context, ClEvent event) noexcept
    : context_(std::move(context)), event_(event) {}

OpenclEvent::~OpenclEvent() {
    if (!context_->is_lost()) context_->api().clReleaseEvent(event_);
}

bool OpenclEvent::done() const {
    context_->require_working();
    if (done_.load(std::memory_order_acquire)) return true;
    std::int32_t status = 0;
    context_->check(
        context_->api().clGetEventInfo(event_, ClEventInfo::command_execution_status, sizeof status, &status, nullptr),
        "clGetEventInfo");
    if (status > cl_complete) return false;
    synchronize();  // OpenCL makes the results visible to a thread that has waited, and not to one that has asked
    return true;
}

bool OpenclEvent::wait_until(std::chrono::steady_clock::time_point deadline) const {
    context_->require_working();
    // OpenCL has no wait with a deadline.
    if (deadline != std::chrono::steady_clock::time_point::max())
        return poll_until(deadline, [this] { return done(); });
    if (!done_.load(std::memory_order_acquire)) synchronize();
    return true;
}

/// Waits until the event is done. Throws if its work failed.
void OpenclEvent::synchronize() const {
    const OpenclApi& api = context_->api();
    const ClResult waited = api.clWaitForEvents(1, &event_);
    std::int32_t status = cl_complete;
    context_->check(api.clGetEventInfo(event_, ClEventInfo::command_execution_status, sizeof status, &status, nullptr),
                    "clGetEventInfo");
    // The status of a command that failed is its error.
    if (status < cl_complete) context_->check(static_cast<ClResult>(status), "a command");
    context_->check(waited, "clWaitForEvents");
    done_.store(true, std::memory_order_release);
}

std::shared_ptr<DeviceEvent> record_opencl(const std::shared_ptr<OpenclContext>& context, ClQueue queue,
                                           std::span<const ClEvent> commands) {
    context->require_working();
    const OpenclApi& api = context->api();
    ClEvent marker = nullptr;
    context->check(api.clEnqueueMarkerWithWaitList(queue, static_cast<std::uint32_t>(commands.size()),
                                                   commands.empty() ? nullptr : commands.data(), &marker),
                   "clEnqueueMarkerWithWaitList");
    auto event = std::make_shared<OpenclEvent>(context, marker);
    // Other queues may wait only for what was sent to the device.
    context->check(api.clFlush(queue), "clFlush");
    return event;
}

void wait_in_opencl(OpenclContext& context, ClQueue queue, const DeviceEvent& event, ClEvent* barrier) {
    context.require_working();
    const auto* const ours = dynamic_cast<const OpenclEvent*>(&event);
    if (ours == nullptr || ours->context().context() != context.context()) {
        event.wait();
        return;
    }
    const ClEvent waited = ours->event();
    context.check(context.api().clEnqueueBarrierWithWaitList(queue, 1, &waited, barrier),
                  "clEnqueueBarrierWithWaitList");
}

ClMemory opencl_memory(const OpenclContext& context, const DeviceMemory& memory) {
    const auto* const ours = dynamic_cast<const OpenclMemory*>(&memory);
    if (ours == nullptr || ours->context().context() != context.context())
        throw Error(Errc::invalid_argument, "device memory of another device than '" + context.name() + "'");
    return ours->memory();
}

OpenclQueue::OpenclQueue(std::shared_ptr<OpenclContext> context, Device::Lane lane)
    : context_(std::move(context)), queue_(context_->queue(lane)) {}

OpenclQueue::~OpenclQueue() { release_commands(); }

void OpenclQueue::release_commands() noexcept {
    if (!context_->is_lost()) {
        for (ClEvent const command : commands_) context_->api().clReleaseEvent(command);
    }
    commands_.clear();
}

template <class Enqueue> ClResult OpenclQueue::put(Enqueue&& enqueue) {
    const ClResult result = enqueue(&commands_.emplace_back());
    if (result != ClResult::success) commands_.pop_back();
    return result;
}

void OpenclQueue::copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) {
    check_copy(to, offset, from, part);
    context_->require_working();
    const std::lock_guard lock(mutex_);
    copy_range(opencl_memory(*context_, to), offset, from, part);
}

void OpenclQueue::copy_range(ClMemory to, std::uint64_t offset, const StagingBuffer& from, Extent part) {
    if (part.size == 0) return;
    const ClResult result = put([&](ClEvent* event) {
        return context_->api().clEnqueueWriteBuffer(queue_, to, 0, offset, part.size, from.bytes().data() + part.offset,
                                                    0, nullptr, event);
    });
    context_->check(result, "clEnqueueWriteBuffer");
}

void OpenclQueue::copy_rows(DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) {
    check_rows(to, from, rows);
    context_->require_working();
    const ClMemory memory = opencl_memory(*context_, to);
    if (rows.row_bytes == 0) return;
    const std::lock_guard lock(mutex_);
    if (rows.rows == 1 || (rows.to_pitch == rows.row_bytes && rows.from_pitch == rows.row_bytes)) {
        copy_range(memory, rows.to, from, {rows.from, rows.rows * rows.row_bytes});
        return;
    }
    const std::size_t to_origin[] = {rows.to, 0, 0};
    const std::size_t from_origin[] = {0, 0, 0};
    const std::size_t region[] = {rows.row_bytes, rows.rows, 1};
    const ClResult result = put([&](ClEvent* event) {
        return context_->api().clEnqueueWriteBufferRect(queue_, memory, 0, to_origin, from_origin, region,
                                                        rows.to_pitch, 0, rows.from_pitch, 0,
                                                        from.bytes().data() + rows.from, 0, nullptr, event);
    });
    if (result != ClResult::invalid_value) return context_->check(result, "clEnqueueWriteBufferRect");
    // Implementations differ in the pitches and origins that they accept. Nothing was queued.
    for (std::uint64_t row = 0; row < rows.rows; ++row)
        copy_range(memory, rows.to + row * rows.to_pitch, from, {rows.from + row * rows.from_pitch, rows.row_bytes});
}

std::shared_ptr<DeviceEvent> OpenclQueue::record() {
    const std::lock_guard lock(mutex_);
    auto event = record_opencl(context_, queue_, commands_);
    release_commands();
    return event;
}

void OpenclQueue::wait_for(const DeviceEvent& event) {
    ClEvent barrier = nullptr;
    wait_in_opencl(*context_, queue_, event, &barrier);  // may block: the event can be of another device
    if (barrier == nullptr) return;
    const std::lock_guard lock(mutex_);
    commands_.push_back(barrier);
}

std::span<std::byte> OpenclQueue::map(DeviceMemory& memory) {
    context_->require_working();
    const ClMemory buffer = opencl_memory(*context_, memory);
    if (memory.size() == 0) return {};
    ClResult result = ClResult::success;
    // Not in this queue, whose copies may wait for kernels of callers.
    void* const mapped =
        context_->api().clEnqueueMapBuffer(context_->side_queue(), buffer, 1, cl_map_write_invalidate_region, 0,
                                           memory.size(), 0, nullptr, nullptr, &result);
    if (is_out_of_memory(result)) return {};
    context_->check(result, "clEnqueueMapBuffer");
    return {static_cast<std::byte*>(mapped), memory.size()};
}

void OpenclQueue::unmap(DeviceMemory& memory, std::span<std::byte> mapped) {
    context_->require_working();
    const ClMemory buffer = opencl_memory(*context_, memory);
    if (mapped.empty()) return;
    const auto enqueue = [&](ClEvent* event) {
        return context_->api().clEnqueueUnmapMemObject(queue_, buffer, mapped.data(), 0, nullptr, event);
    };
    ClResult result = ClResult::success;
    try {
        const std::lock_guard lock(mutex_);
        result = put(enqueue);
    } catch (const std::bad_alloc&) {  // no place for the event
        result = enqueue(nullptr);
        if (result == ClResult::success) result = context_->api().clFinish(queue_);
    }
    context_->check(result, "clEnqueueUnmapMemObject");
}

void OpenclQueue::drain() noexcept {
    // A failed device, too: copies can be in progress if the failure was another one. A child has no queue.
    if (context_->is_child()) return;
    const ClResult result = context_->api().clFinish(queue_);
    if (result != ClResult::success) context_->note_failure(result, "clFinish");
}

}  // namespace safemap::SAFEMAP_ABI::drivers
