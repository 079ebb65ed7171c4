// Fences: what a device has to do before memory may be written again.
#include "device/fences.hpp"

#include <algorithm>
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

}  // namespace

void add(Fences& fences, Fence fence) {
    const auto same = std::ranges::find(fences, fence.stream, &Fence::stream);
    if (fence.stream && same != fences.end()) *same = std::move(fence);
    else fences.push_back(std::move(fence));
}

bool are_done(const Fences& fences) noexcept { return std::ranges::all_of(fences, is_done); }

void drop_done(Fences& fences) noexcept { fences.remove_if(is_done); }

void wait_until_done(const DeviceEvent& event) noexcept {
    try {
        event.wait();
    } catch (...) {
    }
}

void wait_until_done(const Fences& fences) noexcept {
    for (const Fence& fence : fences) wait_until_done(*fence.event);
}

}  // namespace safemap::SAFEMAP_ABI::device
