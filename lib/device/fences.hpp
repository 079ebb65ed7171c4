// Fences: what a device has to do before memory may be written again.
#pragma once

#include <safemap/advanced/device_backend.hpp>

#include <chrono>
#include <list>
#include <memory>

namespace safemap::SAFEMAP_ABI::device {

/// An event to wait for, and the stream that it is of; no stream: a queue of the device.
struct Fence {
    std::shared_ptr<DeviceEvent> event;
    NativeStream stream = {};
};

/// A list, because lists are joined without allocating.
using Fences = std::list<Fence>;

struct AddressRange;
struct Account;

/// Device memory, and what still reads or writes it.
struct Space {
    std::shared_ptr<DeviceMemory> memory = {};
    Fences fences = {};
    Account* last = nullptr;                 // the account that had it last; lives until its memory is gone
    std::weak_ptr<AddressRange> range = {};  // the groups that its addresses are kept for, if any

    explicit operator bool() const noexcept { return memory != nullptr; }
};

/// Adds a fence. It takes the place of an earlier one of the same stream, because a stream works in order.
void add(Fences& fences, Fence fence);
/// Returns true if nothing is left to wait for. Also if the device failed: then nothing is in progress.
bool are_done(const Fences& fences) noexcept;
/// Removes the fences that are done.
void drop_done(Fences& fences) noexcept;
using Deadline = std::chrono::steady_clock::time_point;
/// Waits for an event, even if it fails: what it guards is free then, too. A caller that needs the data waits for the
/// event itself. Returns false at the deadline.
bool wait_until_done(const DeviceEvent& event, Deadline deadline = Deadline::max()) noexcept;
bool wait_until_done(const Fences& fences, Deadline deadline = Deadline::max()) noexcept;

}  // namespace safemap::SAFEMAP_ABI::device
