// The functions of the driver for virtual memory: addresses without memory, memory without addresses, and mappings.

#include "cuda/stub/stub.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

using namespace stub;

namespace {

constexpr int unmapped_byte = 0xEE;

bool is_multiple(std::size_t size) { return size > 0 && size % state().options.granularity == 0; }

/// Returns the reservation that begins at an address and has this size, or null, which is a finding.
Reservation* reservation_of(CuPointer address, std::size_t size, const char* call) {
    const auto at = state().reservations.find(address);
    if (at != state().reservations.end() && at->second.size == size) return &at->second;
    state().find(std::string(call) + " of addresses that are not reserved");
    return nullptr;
}

/// Frees memory that has neither a handle nor a mapping any more.
void free_if_unused(CuMemoryHandle handle) {
    State& all = state();
    const auto at = all.physical.find(handle);
    if (at->second.has_handle || at->second.mappings > 0) return;
    all.counts["live_allocations"] -= 1;
    all.counts["live_memory"] -= at->second.size;
    all.plain_used[static_cast<std::size_t>(at->second.device)] -= at->second.size;
    all.physical.erase(at);
}

std::shared_ptr<void> map_host(std::size_t size) {
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    return {at, [size](void* begin) { ::munmap(begin, size); }};
}

}  // namespace

extern "C" {

CuResult cuMemGetAllocationGranularity(std::size_t* granularity, const CuMemoryProperties* properties, int) {
    SAFEMAP_STUB_ENTER(cuMemGetAllocationGranularity, Call::nothing);
    if (!is_device(properties->location.id)) return CuResult::invalid_value;
    *granularity = all.options.granularity;
    return CuResult::success;
}

CuResult cuMemAddressReserve(CuPointer* address, std::size_t size, std::size_t, CuPointer, unsigned long long) {
    SAFEMAP_STUB_ENTER(cuMemAddressReserve, Call::no_capture);
    if (!is_multiple(size) || size > largest_size) return CuResult::invalid_value;
    auto bytes = map_host(size);
    if (bytes == nullptr) return CuResult::out_of_memory;
    *address = reinterpret_cast<std::uintptr_t>(bytes.get());
    all.reservations[*address] = {size, std::move(bytes)};
    all.count("live_reservations");
    return CuResult::success;
}

CuResult cuMemAddressFree(CuPointer address, std::size_t size) {
    SAFEMAP_STUB_ENTER(cuMemAddressFree, Call::no_capture);
    const Reservation* const reservation = reservation_of(address, size, "cuMemAddressFree");
    if (reservation == nullptr) return CuResult::invalid_value;
    if (reservation->handle != 0) {
        all.find("addresses were freed while memory was mapped there");
        return CuResult::invalid_value;
    }
    all.reservations.erase(address);
    all.counts["live_reservations"] -= 1;
    return CuResult::success;
}

CuResult cuMemCreate(CuMemoryHandle* handle, std::size_t size, const CuMemoryProperties* properties,
                     unsigned long long) {
    SAFEMAP_STUB_ENTER(cuMemCreate, Call::no_capture);
    const int device = properties->location.id;
    if (!is_multiple(size) || !is_device(device)) return CuResult::invalid_value;
    const std::uint64_t used = all.used(device);
    if (size > all.options.memory || used > all.options.memory - size) return CuResult::out_of_memory;
    *handle = ++all.last_handle;
    all.physical[*handle] = {size, device};
    all.plain_used[static_cast<std::size_t>(device)] += size;
    all.count("allocations");
    all.count("live_allocations");
    all.count("live_handles");
    all.count("live_memory", size);
    all.raise_peak();
    return CuResult::success;
}

CuResult cuMemRelease(CuMemoryHandle handle) {
    SAFEMAP_STUB_ENTER(cuMemRelease, Call::no_capture);
    const auto at = all.physical.find(handle);
    if (at == all.physical.end() || !at->second.has_handle) {
        all.find("memory was released twice, or never created");
        return CuResult::invalid_value;
    }
    at->second.has_handle = false;
    all.counts["live_handles"] -= 1;
    free_if_unused(handle);
    return CuResult::success;
}

CuResult cuMemMap(CuPointer address, std::size_t size, std::size_t offset, CuMemoryHandle handle, unsigned long long) {
    SAFEMAP_STUB_ENTER(cuMemMap, Call::no_capture);
    Reservation* const reservation = reservation_of(address, size, "cuMemMap");
    const auto memory = all.physical.find(handle);
    if (reservation == nullptr || memory == all.physical.end() || !memory->second.has_handle || offset != 0 ||
        size > memory->second.size)
        return CuResult::invalid_value;
    if (reservation->handle != 0) {
        all.find("memory was mapped where other memory is");
        return CuResult::invalid_value;
    }
    auto made = std::make_shared<Allocation>();
    made->address = address;
    made->size = size;
    made->device = memory->second.device;
    made->accessible = false;
    made->addresses = reservation->bytes;
    std::memset(reservation->bytes.get(), 0xCD, size);
    reservation->handle = handle;
    ++memory->second.mappings;
    all.allocations[address] = std::move(made);
    return CuResult::success;
}

CuResult cuMemUnmap(CuPointer address, std::size_t size) {
    SAFEMAP_STUB_ENTER(cuMemUnmap, Call::no_capture);
    Reservation* const reservation = reservation_of(address, size, "cuMemUnmap");
    if (reservation == nullptr) return CuResult::invalid_value;
    if (reservation->handle == 0) {
        all.find("memory was unmapped twice");
        return CuResult::invalid_value;
    }
    for (const Access& access : all.allocations[address]->accesses)
        if (access.number > all.host.of(access.stream))
            all.find("memory was unmapped while stream " + std::to_string(access.stream) +
                     (access.writes ? " writes it" : " reads it"));
    all.allocations.erase(address);
    std::memset(reservation->bytes.get(), unmapped_byte, size);
    const CuMemoryHandle handle = std::exchange(reservation->handle, 0);
    --all.physical[handle].mappings;
    free_if_unused(handle);
    return CuResult::success;
}

CuResult cuMemSetAccess(CuPointer address, std::size_t size, const CuMemoryAccess* access, std::size_t count) {
    SAFEMAP_STUB_ENTER(cuMemSetAccess, Call::no_capture);
    const Reservation* const reservation = reservation_of(address, size, "cuMemSetAccess");
    if (reservation == nullptr || reservation->handle == 0 || count != 1) return CuResult::invalid_value;
    Allocation& allocation = *all.allocations[address];
    allocation.accessible = access->flags == 3 && access->location.id == allocation.device;
    return CuResult::success;
}

}  // extern "C"
