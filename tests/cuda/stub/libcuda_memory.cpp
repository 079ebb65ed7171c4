// The functions of the driver for memory and copies, over the state of the stub.

#include "cuda/stub/stub.hpp"

#include <algorithm>
#include <cstring>
#include <string>

using namespace stub;

namespace {

Pool* pool_of(CuMemoryPool handle) {
    auto* const pool = reinterpret_cast<Pool*>(handle);
    if (state().pools.contains(pool)) return pool;
    state().find("a pool that does not exist was used");
    return nullptr;
}

/// Returns true if a range of host memory is in one registration, or in none.
bool is_one_registration(const Area& area) {
    for (const auto& [begin, size] : state().registrations) {
        if (!area.overlaps({begin, size, size, 1})) continue;
        return area.begin >= begin && area.end() <= begin + size;
    }
    return true;
}

CuResult copy_to_device(const Area& to, const Area& from, CuStream handle, const char* call) {
    State& all = state();
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    const auto allocation = holder_of(to, call);
    if (allocation == nullptr) return CuResult::invalid_value;
    if (allocation->device != stream->device) all.find(std::string(call) + " to memory of another device");
    if (!is_one_registration(from)) {
        all.find(std::string(call) + " from memory that is registered only in part, or by several calls");
        return CuResult::invalid_value;
    }
    if (stream->capturing) all.find(std::string(call) + " was captured");
    const std::uint64_t expected = checksum(from);
    const auto run = [=] {
        if (checksum(from) != expected) state().find("a staging buffer was written while a copy needed it");
        for (std::size_t row = 0; row < to.rows; ++row)
            std::memcpy(reinterpret_cast<void*>(to.begin + row * to.pitch),
                        reinterpret_cast<const void*>(from.begin + row * from.pitch), to.width);
        static_cast<void>(allocation);  // lives as long as the copy
    };
    stream->before.join(all.host);
    touch(*allocation, to, true, *stream, stream->queued + 1);
    const std::uint64_t number = put(*stream, {run, 0, 0});
    std::erase_if(all.host_reads, [&](const Access& read) { return read.number <= all.host.of(read.stream); });
    all.host_reads.push_back({from, false, stream->id, number});
    all.count("copies");
    all.count("copied_bytes", to.rows * to.width);
    return CuResult::success;
}

}  // namespace

extern "C" {

CuResult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    SAFEMAP_STUB_ENTER(cuMemGetInfo_v2, Call::context);
    *total = all.options.memory;
    *free = all.options.memory - std::min(all.options.memory, all.used(current_device()));
    return CuResult::success;
}

CuResult cuMemAlloc_v2(CuPointer* address, std::size_t size) {
    SAFEMAP_STUB_ENTER(cuMemAlloc_v2, Call::context | Call::no_capture);
    if (size > largest_size) return CuResult::invalid_value;
    const auto allocation = allocate(size, current_device(), nullptr);
    if (allocation == nullptr) return CuResult::out_of_memory;
    *address = allocation->address;
    return CuResult::success;
}

CuResult cuMemFree_v2(CuPointer address) {
    SAFEMAP_STUB_ENTER(cuMemFree_v2, Call::context | Call::no_capture);
    return free_memory(address, all.host, nullptr);
}

CuResult cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags) {
    SAFEMAP_STUB_ENTER(cuMemHostRegister_v2, Call::context | Call::no_capture);
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    if (all.counts["registered_bytes"] + size > all.options.lockable) return CuResult::out_of_memory;
    for (const auto& [other, length] : all.registrations)
        if (Area{begin, size, size, 1}.overlaps({other, length, length, 1}))
            return CuResult::host_memory_already_registered;
    if ((flags & cu_host_register_portable) == 0) all.find("host memory was registered for one device only");
    all.registrations[begin] = size;
    all.count("registrations");
    all.count("live_registrations");
    all.count("registered_bytes", size);
    return CuResult::success;
}

CuResult cuMemHostUnregister(void* address) {
    SAFEMAP_STUB_ENTER(cuMemHostUnregister, Call::context | Call::no_capture);
    const auto at = all.registrations.find(reinterpret_cast<std::uintptr_t>(address));
    if (at == all.registrations.end()) {
        all.find("host memory was unregistered that is not registered");
        return CuResult::invalid_value;
    }
    for (const Access& read : all.host_reads)
        if (read.number > all.host.of(read.stream) && read.area.overlaps({at->first, at->second, at->second, 1}))
            all.find("host memory was unregistered while a copy needed it");
    all.counts["live_registrations"] -= 1;
    all.counts["registered_bytes"] -= at->second;
    all.registrations.erase(at);
    return CuResult::success;
}

CuResult cuMemcpyHtoDAsync_v2(CuPointer to, const void* from, std::size_t size, CuStream stream) {
    SAFEMAP_STUB_ENTER(cuMemcpyHtoDAsync_v2, Call::context);
    return copy_to_device({to, size, size, 1}, {reinterpret_cast<std::uintptr_t>(from), size, size, 1}, stream,
                          "cuMemcpyHtoDAsync");
}

CuResult cuMemcpy2DAsync_v2(const CuCopy2D* copy, CuStream stream) {
    SAFEMAP_STUB_ENTER(cuMemcpy2DAsync_v2, Call::context);
    const CuCopy2D& c = *copy;
    const bool valid = c.src_type == CuMemoryType::host && c.dst_type == CuMemoryType::device && c.width > 0 &&
                       c.height > 0 && c.width + c.src_x <= c.src_pitch && c.width + c.dst_x <= c.dst_pitch &&
                       std::max(c.src_pitch, c.dst_pitch) <= all.options.max_pitch;
    if (!valid) return CuResult::invalid_value;
    const auto source = reinterpret_cast<std::uintptr_t>(c.src_host) + c.src_y * c.src_pitch + c.src_x;
    const std::uintptr_t target = c.dst_device + c.dst_y * c.dst_pitch + c.dst_x;
    return copy_to_device({target, c.width, c.dst_pitch, c.height}, {source, c.width, c.src_pitch, c.height}, stream,
                          "cuMemcpy2DAsync");
}

CuResult cuMemcpyDtoHAsync_v2(void* to, CuPointer from, std::size_t size, CuStream handle) {
    SAFEMAP_STUB_ENTER(cuMemcpyDtoHAsync_v2, Call::context);
    Stream* const stream = stream_of(handle);
    if (stream == nullptr) return CuResult::invalid_handle;
    const Area area{from, size, size, 1};
    const auto allocation = holder_of(area, "cuMemcpyDtoHAsync");
    if (allocation == nullptr) return CuResult::invalid_value;
    stream->before.join(all.host);
    touch(*allocation, area, false, *stream, stream->queued + 1);
    put(*stream,
        {[=] { std::memcpy(to, reinterpret_cast<const void*>(from), size), static_cast<void>(allocation); }, 0, 0});
    return CuResult::success;
}

CuResult cuMemPoolCreate(CuMemoryPool* pool, const CuPoolProperties* properties) {
    SAFEMAP_STUB_ENTER(cuMemPoolCreate, Call::no_capture);
    if (all.options.pools == 0) return CuResult::not_supported;
    if (properties->allocation_type != 1 || properties->location_type != 1 || !is_device(properties->location_id))
        return CuResult::invalid_value;
    auto* const made = new Pool{properties->location_id};
    all.pools.insert(made);
    all.count("live_pools");
    *pool = reinterpret_cast<CuMemoryPool>(made);
    return CuResult::success;
}

CuResult cuMemPoolDestroy(CuMemoryPool handle) {
    SAFEMAP_STUB_ENTER(cuMemPoolDestroy, Call::no_capture);
    Pool* const pool = pool_of(handle);
    if (pool == nullptr) return CuResult::invalid_value;
    if (pool->used > 0) all.find("a pool was destroyed while its memory was in use");
    all.pools.erase(pool);
    delete pool;
    all.counts["live_pools"] -= 1;
    return CuResult::success;
}

CuResult cuMemPoolSetAttribute(CuMemoryPool handle, CuPoolAttribute attribute, void* value) {
    SAFEMAP_STUB_ENTER(cuMemPoolSetAttribute, Call::nothing);
    Pool* const pool = pool_of(handle);
    if (pool == nullptr || attribute != CuPoolAttribute::release_threshold) return CuResult::invalid_value;
    std::memcpy(&pool->threshold, value, sizeof pool->threshold);
    return CuResult::success;
}

CuResult cuMemPoolGetAttribute(CuMemoryPool handle, CuPoolAttribute attribute, void* value) {
    SAFEMAP_STUB_ENTER(cuMemPoolGetAttribute, Call::nothing);
    const Pool* const pool = pool_of(handle);
    if (pool == nullptr) return CuResult::invalid_value;
    const std::uint64_t number = attribute == CuPoolAttribute::used_now       ? pool->used
                                 : attribute == CuPoolAttribute::reserved_now ? pool->reserved
                                                                              : pool->threshold;
    std::memcpy(value, &number, sizeof number);
    return CuResult::success;
}

CuResult cuMemPoolTrimTo(CuMemoryPool handle, std::size_t keep) {
    SAFEMAP_STUB_ENTER(cuMemPoolTrimTo, Call::no_capture);
    Pool* const pool = pool_of(handle);
    if (pool == nullptr) return CuResult::invalid_value;
    pool->reserved = std::min(pool->reserved, std::max<std::uint64_t>(keep, pool->used));
    return CuResult::success;
}

CuResult cuMemAllocFromPoolAsync(CuPointer* address, std::size_t size, CuMemoryPool handle, CuStream in) {
    SAFEMAP_STUB_ENTER(cuMemAllocFromPoolAsync, Call::context);
    Pool* const pool = pool_of(handle);
    Stream* const stream = stream_of(in);
    if (pool == nullptr || stream == nullptr) return CuResult::invalid_value;
    if (size > largest_size) return CuResult::invalid_value;
    const auto allocation = allocate(size, pool->device, pool);
    if (allocation == nullptr) return CuResult::out_of_memory;
    stream->before.join(all.host);
    touch(*allocation, {allocation->address, size, size, 1}, true, *stream, stream->queued + 1);
    put(*stream, {});
    *address = allocation->address;
    return CuResult::success;
}

CuResult cuMemFreeAsync(CuPointer address, CuStream in) {
    SAFEMAP_STUB_ENTER(cuMemFreeAsync, Call::context);
    Stream* const stream = stream_of(in);
    if (stream == nullptr) return CuResult::invalid_handle;
    stream->before.join(all.host);
    return free_memory(address, stream->before, stream);
}

}  // extern "C"
