#include "device/cuda_queue.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"
#include "device/cuda_memory.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns the extent of all rows, or nothing if it does not fit in 64 bits.
std::optional<Extent> extent_of(std::uint64_t begin, std::uint64_t pitch, const RowCopy& rows) {
    const auto before_last = checked_mul(pitch, rows.rows - 1);
    const auto size = before_last ? checked_add(*before_last, rows.row_bytes) : std::nullopt;
    return size ? std::optional(Extent{begin, *size}) : std::nullopt;
}

void require_rows(const RowCopy& rows, std::uint64_t to_size, std::uint64_t from_size) {
    if (rows.rows == 0 || rows.to_pitch < rows.row_bytes || rows.from_pitch < rows.row_bytes)
        throw Error(Errc::invalid_argument, "a copy of no rows, or of rows that overlap");
    const auto to = extent_of(rows.to, rows.to_pitch, rows);
    const auto from = extent_of(rows.from, rows.from_pitch, rows);
    if (!to || !from) throw Error(Errc::invalid_argument, "a copy of rows whose size does not fit in 64 bits");
    require_inside(*from, from_size, "a staging buffer");
    require_inside(*to, to_size, "device memory");
}

CuPointer address_of(const DeviceMemory& memory) { return std::bit_cast<CuPointer>(memory.handle()); }

/// Returns true if a range of a staging buffer is in one of the pieces in which the buffer is locked.
bool in_one_piece(const Extent& part) {
    return part.offset / CudaStaging::piece == (part.end() - 1) / CudaStaging::piece;
}

}  // namespace

void require_inside(Extent part, std::uint64_t size, const char* what) {
    if (part.inside(size)) return;
    throw Error(Errc::invalid_argument, "a copy of " + bytes_text(part.size) + " at " + std::to_string(part.offset) +
                                            " reaches outside " + what + " of " + bytes_text(size));
}

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
    constexpr std::chrono::microseconds shortest(50);
    constexpr std::chrono::microseconds longest(1000);
    if (deadline == Clock::time_point::max()) {
        wait_for_driver();
        return true;
    }
    // The driver has no wait with a deadline.
    for (std::chrono::microseconds pause = shortest;; pause = std::min(2 * pause, longest)) {
        if (done()) return true;
        const auto now = Clock::now();
        if (now >= deadline) return false;
        std::this_thread::sleep_until(std::min(now + pause, deadline));
    }
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

CudaQueue::CudaQueue(std::shared_ptr<CudaContext> context, Device::Lane lane)
    : context_(std::move(context)), stream_(context_->stream(lane)) {}

void CudaQueue::copy(DeviceMemory& to, std::uint64_t offset, const StagingBuffer& from, Extent part) {
    require_inside(part, from.bytes().size(), "a staging buffer");
    require_inside({offset, part.size}, to.size(), "device memory");
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
    require_rows(rows, to.size(), from.bytes().size());
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
    const auto* const of_cuda = dynamic_cast<const CudaEvent*>(&event);
    if (of_cuda == nullptr) {
        event.wait();
        context_->require_working();
        return;
    }
    const CudaEntry entry(*context_);
    context_->check(of_cuda->put_before(stream_), "cuStreamWaitEvent");  // the event may be of another CUDA device
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

}  // namespace safemap::SAFEMAP_ABI::device
