// Fences: what a device has to do before memory may be written again.
#include "device/fences.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

namespace safemap::SAFEMAP_ABI::device {
namespace {

bool is_done(const Fence& fence) noexcept {
    try {
        return fence.event->done();
    } catch (...) {
        return true;
    }
}

/// Returns true if a handle is the same stream on each thread. CU_STREAM_PER_THREAD is not.
bool is_one_stream(NativeStream stream) noexcept {
    constexpr std::uintptr_t per_thread = 2;
    return stream &&
           (stream.kind != NativeStream::Kind::cuda || std::bit_cast<std::uintptr_t>(stream.handle) != per_thread);
}

}  // namespace

void add(Fences& fences, Fence fence) {
    const auto same = std::ranges::find(fences, fence.stream, &Fence::stream);
    if (is_one_stream(fence.stream) && same != fences.end()) *same = std::move(fence);
    else fences.push_back(std::move(fence));
}

bool are_done(const Fences& fences) noexcept { return std::ranges::all_of(fences, is_done); }

void drop_done(Fences& fences) noexcept { fences.remove_if(is_done); }

bool wait_until_done(const DeviceEvent& event, Deadline deadline) noexcept {
    try {
        return event.wait_until(deadline);
    } catch (...) {
        return true;
    }
}

bool wait_until_done(const Fences& fences, Deadline deadline) noexcept {
    return std::ranges::all_of(fences, [&](const Fence& fence) { return wait_until_done(*fence.event, deadline); });
}

}  // namespace safemap::SAFEMAP_ABI::device
