// The functions of the driver for virtual memory, which the real driver answers.

#include "cuda/relay/relay.hpp"

#include <algorithm>

using namespace relay;

namespace {

/// Stops counting memory that has neither a handle nor a mapping any more.
void forget_if_unused(CuMemoryHandle handle) {
    State& all = state();
    const auto at = all.physical.find(handle);
    if (at == all.physical.end() || at->second.has_handle || at->second.mapped_at) return;
    all.counts["live_allocations"] -= 1;
    all.counts["live_memory"] -= at->second.size;
    all.plain_used[at->second.device] -= at->second.size;
    all.physical.erase(at);
}

void forget_mapping(CuPointer address) {
    State& all = state();
    all.allocations.erase(address);
    const auto at = std::find_if(all.physical.begin(), all.physical.end(),
                                 [=](const auto& one) { return one.second.mapped_at == address; });
    if (at == all.physical.end()) return;
    at->second.mapped_at.reset();
    forget_if_unused(at->first);
}

}  // namespace

extern "C" {

CuResult cuMemGetAllocationGranularity(std::size_t* granularity, const CuMemoryProperties* properties, int which) {
    SAFEMAP_RELAY_ENTER(cuMemGetAllocationGranularity, nothing);
    return SAFEMAP_RELAY_FORWARD(cuMemGetAllocationGranularity, granularity, properties, which);
}

CuResult cuMemAddressReserve(CuPointer* address, std::size_t size, std::size_t alignment, CuPointer wanted,
                             unsigned long long flags) {
    SAFEMAP_RELAY_ENTER(cuMemAddressReserve, nothing);
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemAddressReserve, address, size, alignment, wanted, flags);
    if (result != CuResult::success) return result;
    const std::lock_guard lock(state().mutex);
    state().reservations[*address] = size;
    state().count("live_reservations");
    return result;
}

CuResult cuMemAddressFree(CuPointer address, std::size_t size) {
    SAFEMAP_RELAY_ENTER(cuMemAddressFree, nothing);
    {
        State& all = state();
        const std::lock_guard lock(all.mutex);
        if (all.allocations.contains(address)) {
            all.find("addresses were freed while memory was mapped there");
            return CuResult::invalid_value;
        }
        if (all.reservations.erase(address) > 0) all.counts["live_reservations"] -= 1;
    }
    return SAFEMAP_RELAY_FORWARD(cuMemAddressFree, address, size);
}

CuResult cuMemCreate(CuMemoryHandle* handle, std::size_t size, const CuMemoryProperties* properties,
                     unsigned long long flags) {
    SAFEMAP_RELAY_ENTER(cuMemCreate, nothing);
    State& all = state();
    const int device = properties->location.id;
    {
        const std::lock_guard lock(all.mutex);
        const std::uint64_t most = all.options.memory.value_or(~std::uint64_t{0});
        if (size > most || all.used(device) > most - size) return CuResult::out_of_memory;
        all.plain_used[device] += size;
    }
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemCreate, handle, size, properties, flags);
    const std::lock_guard lock(all.mutex);
    if (result != CuResult::success) {
        all.plain_used[device] -= size;
        return result;
    }
    all.physical[*handle] = {size, device};
    all.count("allocations");
    all.count("live_allocations");
    all.count("live_handles");
    all.count("live_memory", size);
    all.raise_peak();
    return result;
}

CuResult cuMemRelease(CuMemoryHandle handle) {
    SAFEMAP_RELAY_ENTER(cuMemRelease, nothing);
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemRelease, handle);
    if (result != CuResult::success) return result;
    const std::lock_guard lock(state().mutex);
    const auto at = state().physical.find(handle);
    if (at == state().physical.end()) return result;
    at->second.has_handle = false;
    state().counts["live_handles"] -= 1;
    forget_if_unused(handle);
    return result;
}

CuResult cuMemMap(CuPointer address, std::size_t size, std::size_t offset, CuMemoryHandle handle,
                  unsigned long long flags) {
    SAFEMAP_RELAY_ENTER(cuMemMap, nothing);
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemMap, address, size, offset, handle, flags);
    if (result != CuResult::success) return result;
    const std::lock_guard lock(state().mutex);
    Physical& memory = state().physical[handle];
    memory.mapped_at = address;
    state().allocations[address] = {size, memory.device, nullptr, true};
    return result;
}

CuResult cuMemUnmap(CuPointer address, std::size_t size) {
    SAFEMAP_RELAY_ENTER(cuMemUnmap, nothing);
    {
        // Before, since another thread may get the memory at once.
        const std::lock_guard lock(state().mutex);
        forget_mapping(address);
    }
    return SAFEMAP_RELAY_FORWARD(cuMemUnmap, address, size);
}

CuResult cuMemSetAccess(CuPointer address, std::size_t size, const CuMemoryAccess* access, std::size_t count) {
    SAFEMAP_RELAY_ENTER(cuMemSetAccess, nothing);
    return SAFEMAP_RELAY_FORWARD(cuMemSetAccess, address, size, access, count);
}

}  // extern "C"
