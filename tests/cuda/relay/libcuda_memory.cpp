// The functions of the driver for memory and copies, which the real driver answers.

#include "cuda/relay/relay.hpp"

#include <algorithm>
#include <cstring>

using namespace relay;

namespace {

int current_device() { return state().contexts[this_thread().contexts.back()]; }

/// Counts memory before it is allocated. Returns false if it does not fit into the memory that a test allows.
bool charge(std::size_t size, int device, Pool* pool) {
    State& all = state();
    const std::uint64_t more = pool == nullptr ? size : std::max(pool->reserved, pool->used + size) - pool->reserved;
    if (const auto most = all.options.memory) {
        const std::uint64_t used = all.used(device);
        if (size > *most || more > *most - std::min(used, *most)) return false;
    }
    if (pool == nullptr) {
        all.plain_used[device] += size;
    } else {
        pool->reserved += more;
        pool->used += size;
    }
    return true;
}

/// Counts less memory when some was freed, or was not allocated.
void discharge(const Allocation& allocation) {
    State& all = state();
    if (allocation.pool == nullptr) {
        all.plain_used[allocation.device] -= allocation.size;
        return;
    }
    const auto pool = all.pools.find(allocation.pool);
    if (pool != all.pools.end()) pool->second.used -= allocation.size;
}

/// Calls `ask`, which allocates memory of the real driver.
template <class Ask> CuResult allocate(CuPointer* address, Allocation wanted, Ask ask) {
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        Pool* pool = nullptr;
        if (wanted.pool != nullptr) {
            if (!all.has_pool(wanted.pool)) return CuResult::invalid_value;
            pool = &all.pools[wanted.pool];
        }
        wanted.device = pool == nullptr ? current_device() : pool->device;
        if (!charge(wanted.size, wanted.device, pool)) return CuResult::out_of_memory;
    }
    const CuResult result = ask();
    const std::lock_guard lock(all.mutex);
    if (result != CuResult::success) {
        discharge(wanted);
        return result;
    }
    all.allocations[*address] = wanted;
    all.count("allocations");
    all.count("live_allocations");
    all.count("live_memory", wanted.size);
    all.raise_peak();
    return result;
}

/// Calls `ask`, which frees memory of the real driver. Counts before, since another thread may get the memory at once.
template <class Ask> CuResult free_memory(CuPointer address, Ask ask) {
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        const auto at = all.allocations.find(address);
        if (at == all.allocations.end()) {
            all.find("memory was freed twice, or is not device memory");
            return CuResult::invalid_value;
        }
        discharge(at->second);
        all.counts["live_allocations"] -= 1;
        all.counts["live_memory"] -= at->second.size;
        all.allocations.erase(at);
    }
    return ask();
}

CuResult counted_copy(CuResult result, std::uint64_t bytes) {
    if (result != CuResult::success) return result;
    const std::lock_guard lock(state().mutex);
    state().count("copies");
    state().count("copied_bytes", bytes);
    return result;
}

}  // namespace

extern "C" {

CuResult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    SAFEMAP_RELAY_ENTER(cuMemGetInfo_v2, context);
    {
        State& all = state();
        const std::lock_guard lock(all.mutex);
        if (const auto most = all.options.memory) {
            *total = *most;
            *free = *most - std::min(*most, all.used(current_device()));
            return CuResult::success;
        }
    }
    return SAFEMAP_RELAY_FORWARD(cuMemGetInfo_v2, free, total);
}

CuResult cuMemAlloc_v2(CuPointer* address, std::size_t size) {
    SAFEMAP_RELAY_ENTER(cuMemAlloc_v2, context);
    return allocate(address, {size, 0, nullptr}, [&] { return SAFEMAP_RELAY_FORWARD(cuMemAlloc_v2, address, size); });
}

CuResult cuMemFree_v2(CuPointer address) {
    SAFEMAP_RELAY_ENTER(cuMemFree_v2, context);
    return free_memory(address, [&] { return SAFEMAP_RELAY_FORWARD(cuMemFree_v2, address); });
}

CuResult cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags) {
    SAFEMAP_RELAY_ENTER(cuMemHostRegister_v2, context);
    State& all = state();
    {
        const std::lock_guard lock(all.mutex);
        if (all.counts["registered_bytes"] + size > all.options.lockable) return CuResult::out_of_memory;
        if ((flags & cu_host_register_portable) == 0) all.find("host memory was registered for one device only");
        all.count("registered_bytes", size);
    }
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemHostRegister_v2, address, size, flags);
    const std::lock_guard lock(all.mutex);
    if (result != CuResult::success) {
        all.counts["registered_bytes"] -= size;
        return result;
    }
    all.registrations[address] = size;
    all.count("registrations");
    all.count("live_registrations");
    return result;
}

CuResult cuMemHostUnregister(void* address) {
    SAFEMAP_RELAY_ENTER(cuMemHostUnregister, context);
    {
        State& all = state();
        const std::lock_guard lock(all.mutex);
        const auto at = all.registrations.find(address);
        if (at == all.registrations.end()) {
            all.find("host memory was unregistered that is not registered");
            return CuResult::invalid_value;
        }
        all.counts["live_registrations"] -= 1;
        all.counts["registered_bytes"] -= at->second;
        all.registrations.erase(at);
    }
    return SAFEMAP_RELAY_FORWARD(cuMemHostUnregister, address);
}

CuResult cuMemcpyHtoDAsync_v2(CuPointer to, const void* from, std::size_t size, CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuMemcpyHtoDAsync_v2, context);
    if (!has_stream(stream)) return CuResult::invalid_handle;
    return counted_copy(SAFEMAP_RELAY_FORWARD(cuMemcpyHtoDAsync_v2, to, from, size, stream), size);
}

CuResult cuMemcpyDtoHAsync_v2(void* to, CuPointer from, std::size_t size, CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuMemcpyDtoHAsync_v2, context);
    if (!has_stream(stream)) return CuResult::invalid_handle;
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemcpyDtoHAsync_v2, to, from, size, stream);
    // A real driver returns when the bytes are in memory that is not locked. A stub would write them later, even where
    // the program gave up, since reset() waits for streams.
    if (result == CuResult::success && real().stub_finding != nullptr)
        SAFEMAP_RELAY_FORWARD(cuStreamSynchronize, stream);
    return result;
}

CuResult cuMemcpy2DAsync_v2(const CuCopy2D* copy, CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuMemcpy2DAsync_v2, context);
    if (!has_stream(stream)) return CuResult::invalid_handle;
    {
        const std::lock_guard lock(state().mutex);
        const auto most = state().options.max_pitch;
        if (most && std::max(copy->src_pitch, copy->dst_pitch) > *most) return CuResult::invalid_value;
    }
    return counted_copy(SAFEMAP_RELAY_FORWARD(cuMemcpy2DAsync_v2, copy, stream), copy->width * copy->height);
}

CuResult cuMemPoolCreate(CuMemoryPool* pool, const CuPoolProperties* properties) {
    SAFEMAP_RELAY_ENTER(cuMemPoolCreate, nothing);
    {
        const std::lock_guard lock(state().mutex);
        if (state().options.pools == 0) return CuResult::not_supported;
    }
    const CuResult result = SAFEMAP_RELAY_FORWARD(cuMemPoolCreate, pool, properties);
    if (result != CuResult::success) return result;
    const std::lock_guard lock(state().mutex);
    state().pools[*pool] = {properties->location_id, 0, 0};
    state().count("live_pools");
    return result;
}

CuResult cuMemPoolDestroy(CuMemoryPool pool) {
    SAFEMAP_RELAY_ENTER(cuMemPoolDestroy, nothing);
    {
        State& all = state();
        const std::lock_guard lock(all.mutex);
        if (!all.has_pool(pool)) return CuResult::invalid_value;
        if (all.pools[pool].used > 0) all.find("a pool was destroyed while its memory was in use");
        all.pools.erase(pool);
        all.counts["live_pools"] -= 1;
    }
    return SAFEMAP_RELAY_FORWARD(cuMemPoolDestroy, pool);
}

CuResult cuMemPoolSetAttribute(CuMemoryPool pool, CuPoolAttribute attribute, void* value) {
    SAFEMAP_RELAY_ENTER(cuMemPoolSetAttribute, nothing);
    if (!has_pool(pool)) return CuResult::invalid_value;
    return SAFEMAP_RELAY_FORWARD(cuMemPoolSetAttribute, pool, attribute, value);
}

CuResult cuMemPoolGetAttribute(CuMemoryPool handle, CuPoolAttribute attribute, void* value) {
    SAFEMAP_RELAY_ENTER(cuMemPoolGetAttribute, nothing);
    if (!has_pool(handle)) return CuResult::invalid_value;
    {
        State& all = state();
        const std::lock_guard lock(all.mutex);
        const bool is_used = attribute == CuPoolAttribute::used_now;
        if (all.options.memory && (is_used || attribute == CuPoolAttribute::reserved_now)) {
            const Pool& pool = all.pools[handle];
            std::memcpy(value, is_used ? &pool.used : &pool.reserved, sizeof pool.used);
            return CuResult::success;
        }
    }
    return SAFEMAP_RELAY_FORWARD(cuMemPoolGetAttribute, handle, attribute, value);
}

CuResult cuMemPoolTrimTo(CuMemoryPool handle, std::size_t keep) {
    SAFEMAP_RELAY_ENTER(cuMemPoolTrimTo, nothing);
    if (!has_pool(handle)) return CuResult::invalid_value;
    {
        const std::lock_guard lock(state().mutex);
        Pool& pool = state().pools[handle];
        pool.reserved = std::min(pool.reserved, std::max<std::uint64_t>(keep, pool.used));
    }
    return SAFEMAP_RELAY_FORWARD(cuMemPoolTrimTo, handle, keep);
}

CuResult cuMemAllocFromPoolAsync(CuPointer* address, std::size_t size, CuMemoryPool pool, CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuMemAllocFromPoolAsync, context);
    if (!has_stream(stream)) return CuResult::invalid_value;
    return allocate(address, {size, 0, pool},
                    [&] { return SAFEMAP_RELAY_FORWARD(cuMemAllocFromPoolAsync, address, size, pool, stream); });
}

CuResult cuMemFreeAsync(CuPointer address, CuStream stream) {
    SAFEMAP_RELAY_ENTER(cuMemFreeAsync, context);
    if (!has_stream(stream)) return CuResult::invalid_handle;
    return free_memory(address, [&] { return SAFEMAP_RELAY_FORWARD(cuMemFreeAsync, address, stream); });
}

}  // extern "C"
