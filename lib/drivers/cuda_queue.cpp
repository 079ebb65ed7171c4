// Starts copies to a GPU and records events. A copy is split where its staging buffer was locked in pieces.
#include "drivers/cuda_queue.hpp"

#include "drivers/backend.hpp"
#include "drivers/cuda_memory.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

using Clock = std::chrono::steady_clock;

CuPointer address_of(const DeviceMemory& memory) { return std::bit_cast<CuPointer>(memory.handle()); }

/// Returns true if a range of a staging buffer is in one of the pieces in which the buffer is locked.
bool in_one_piece(const Extent& part) {
    return part.offset / CudaStaging::piece == (part.end() - 1) / CudaStaging::piece;
}

}  // namespace

CudaEvent::CudaEvent(std::shared_ptr<CudaContext> context, CuStream stream)
    : context_(std::move(context)),
      event_(context_->take_event()),
      recorded_(context_->api().cuEventRecord(event_, stream)) {}

bool CudaEvent::done() const {
    context_->require_working();
    if (done_.load(std::memory_order_acquire)) return true;
    const CudaEntry entry(*context_);
    const CuResult result = context_->api().cuEventQuery(event_);
    if (result == CuResult::not_ready) return false;
    context_->check(result, "cuEventQuery");
    done_.store(true, std::memory_order_release);
    return true;
}

bool CudaEvent::wait_until(Clock::time_point deadline) const {
    // The driver has no wait with a deadline.
    if (deadline != Clock::time_point::max()) return poll_until(deadline, [this] { return done(); });
    wait_for_driver();
    return true;
}

void CudaEvent::wait_for_driver() const {
    context_->require_working();
    if (done_.load(std::memory_order_acquire)) return;
    const CudaEntry entry(*context_);
    context_->check(context_->api().cuEventSynchronize(event_), "cuEventSynchronize");
    done_.store(true, std::memory_order_release);
}

CuResult CudaEvent::put_before(CuStream stream) const {
    context_->require_working();
    if (done_.load(std::memory_order_acquire)) return CuResult::success;
    return context_->api().cuStreamWaitEvent(stream, event_, 0);
}

const CudaEvent* cuda_event(const CudaContext& context, const DeviceEvent& event) {
    const auto* const of_cuda = dynamic_cast<const CudaEvent*>(&event);
    if (of_cuda != nullptr) return of_cuda;
    event.wait();
    context.require_working();
    return nullptr;
}

CudaQueue::CudaQueue(std::shared_ptr<CudaContext> context, Device::Lane lane)
    : context_(std::move(context)), stream_(context_->stream(lane)) {}

void CudaQueue::copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) {
    check_copy(to, offset, from, part);
    const CudaEntry entry(*context_);
    copy_range(address_of(to) + offset, from, part);
}

/// Copies a range, piece by piece: the driver refuses a copy from memory that was locked by several calls.
void CudaQueue::copy_range(CuPointer to, const StagingBuffer& from, Extent part) {
    for (std::uint64_t done = 0; done < part.size;) {
        const std::uint64_t at = part.offset + done;
        const std::uint64_t size = std::min(part.size - done, CudaStaging::piece - at % CudaStaging::piece);
        context_->check(context_->api().cuMemcpyHtoDAsync_v2(to + done, from.bytes().data() + at, size, stream_),
                        "cuMemcpyHtoDAsync");
        done += size;
    }
}

void CudaQueue::copy_rows(DeviceMemory& to, const StagingBuffer& from, const RowCopy& rows) {
    check_rows(to, from, rows);
    const CudaEntry entry(*context_);
    if (rows.row_bytes == 0) return;
    const CuPointer begin = address_of(to) + rows.to;
    if (rows.rows == 1 || (rows.to_pitch == rows.row_bytes && rows.from_pitch == rows.row_bytes)) {
        copy_range(begin, from, {rows.from, rows.rows * rows.row_bytes});
        return;
    }
    const Extent source{rows.from, (rows.rows - 1) * rows.from_pitch + rows.row_bytes};
    if (std::max(rows.to_pitch, rows.from_pitch) > context_->max_pitch() || !in_one_piece(source)) {
        for (std::uint64_t row = 0; row < rows.rows; ++row)
            copy_range(begin + row * rows.to_pitch, from, {rows.from + row * rows.from_pitch, rows.row_bytes});
        return;
    }
    CuCopy2D copy;
    copy.src_host = from.bytes().data() + rows.from;
    copy.src_pitch = rows.from_pitch;
    copy.dst_device = begin;
    copy.dst_pitch = rows.to_pitch;
    copy.width = rows.row_bytes;
    copy.height = rows.rows;
    context_->check(context_->api().cuMemcpy2DAsync_v2(&copy, stream_), "cuMemcpy2DAsync");
}

std::shared_ptr<DeviceEvent> CudaQueue::record() {
    const CudaEntry entry(*context_);
    auto event = std::make_shared<CudaEvent>(context_, stream_);
    context_->check(event->recorded(), "cuEventRecord");
    return event;
}

void CudaQueue::wait_for(const DeviceEvent& event) {
    const CudaEvent* const waited = cuda_event(*context_, event);
    if (waited == nullptr) return;
    const CudaEntry entry(*context_);
    context_->check(waited->put_before(stream_), "cuStreamWaitEvent");
}

void CudaQueue::run(const std::function<void(NativeStream)>& work) {
    const CudaEntry entry(*context_);
    work(NativeStream::cuda(stream_));
}

void CudaQueue::drain() noexcept {
    try {
        // After a failure, too: copies can be under way if it was not the copies that failed.
        const CudaEntry entry(*context_, CudaEntry::If::retained);
        const CuResult result = context_->api().cuStreamSynchronize(stream_);
        if (result != CuResult::success) context_->note_failure(result, "cuStreamSynchronize");
    } catch (const std::exception&) {  // the context knows of the failure
    }
}

}  // namespace safemap::SAFEMAP_ABI::drivers
