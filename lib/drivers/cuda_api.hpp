// The functions of the CUDA driver that safemap calls, with their types. They are declared here, so no build needs
// CUDA, and looked up in libcuda.so.1 while a program runs. cuda_abi.cpp compares them with <cuda.h> where a build
// finds one.
#pragma once

#include "drivers/library.hpp"

#include <safemap/api.hpp>

#include <cstddef>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {

enum class CuResult : int {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    no_device = 100,
    invalid_context = 201,
    operating_system = 304,
    invalid_handle = 400,
    not_ready = 600,
    illegal_address = 700,
    host_memory_already_registered = 712,
    launch_failed = 719,
    not_permitted = 800,
    not_supported = 801,
    stream_capture_unsupported = 900,  ///< the first of the errors of a capture
    stream_capture_invalidated = 901,
    stream_capture_isolation = 905,
    stream_capture_implicit = 906,
    captured_event = 907,
    stream_capture_wrong_thread = 908,  ///< the last of them
    unknown = 999,
};

/// Returns true for an error that is about the arguments of one call: what was done before, and what follows, is not
/// affected. All others end the device. cuda.h (12.4) says of 214, 220, 700, 702, 709, 710, and 714 to 719 that the
/// process must be terminated, and of the rest nothing that would let it go on.
constexpr bool is_about_the_call(CuResult result) noexcept {
    return result == CuResult::invalid_value || result == CuResult::invalid_handle ||
           result == CuResult::not_permitted || result == CuResult::not_supported;
}

using CuDevice = int;
using CuPointer = unsigned long long;  ///< an address on a device
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuMemoryPool = struct CuMemoryPoolObject*;
using CuMemoryHandle = unsigned long long;  ///< physical memory, which has no address

enum class CuDeviceAttribute : int { max_pitch = 11, virtual_memory_supported = 102, memory_pools_supported = 115 };
enum class CuCaptureMode : int { global = 0, thread_local_mode = 1, relaxed = 2 };
enum class CuCaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class CuMemoryType : int { host = 1, device = 2 };
enum class CuPoolAttribute : int { release_threshold = 4, reserved_now = 5, used_now = 7 };

constexpr unsigned cu_stream_non_blocking = 1;
constexpr unsigned cu_event_blocking_sync = 1;
constexpr unsigned cu_event_disable_timing = 2;
constexpr unsigned cu_host_register_portable = 1;

/// CUDA_MEMCPY2D
struct CuCopy2D {
    std::size_t src_x = 0;
    std::size_t src_y = 0;
    CuMemoryType src_type = CuMemoryType::host;
    const void* src_host = nullptr;
    CuPointer src_device = 0;
    void* src_array = nullptr;
    std::size_t src_pitch = 0;
    std::size_t dst_x = 0;
    std::size_t dst_y = 0;
    CuMemoryType dst_type = CuMemoryType::device;
    void* dst_host = nullptr;
    CuPointer dst_device = 0;
    void* dst_array = nullptr;
    std::size_t dst_pitch = 0;
    std::size_t width = 0;
    std::size_t height = 0;
};

/// CUmemPoolProps. The defaults are a pool in the memory of device 0, which no other process can open.
struct CuPoolProperties {
    int allocation_type = 1;  ///< pinned: the only one there is
    int handle_types = 0;
    int location_type = 1;  ///< a device
    int location_id = 0;    ///< its number
    void* security_attributes = nullptr;
    std::size_t max_size = 0;  ///< 0: as the driver likes
    unsigned short usage = 0;
    unsigned char reserved[54] = {};
};

/// CUmemLocation
struct CuMemoryLocation {
    int type = 1;  ///< a device
    int id = 0;    ///< its number
};

/// CUmemAllocationProp. The defaults are memory of device 0, which no other process can open.
struct CuMemoryProperties {
    int allocation_type = 1;  ///< pinned: the only one there is
    int handle_types = 0;
    CuMemoryLocation location = {};
    void* handle_data = nullptr;
    unsigned char flags[8] = {};
};

/// CUmemAccessDesc
struct CuMemoryAccess {
    CuMemoryLocation location = {};
    int flags = 3;  ///< reads and writes
};

constexpr int cu_granularity_minimum = 0;

// X(name in the library, whether it is required, parameters). The pools came with CUDA 11.2, and virtual memory with
// 10.2; the others are older than all drivers that are supported.
#define SAFEMAP_CUDA_FUNCTIONS(X)                                                                                  \
    X(cuInit, true, (unsigned flags))                                                                              \
    X(cuGetErrorName, true, (CuResult result, const char** name))                                                  \
    X(cuGetErrorString, true, (CuResult result, const char** text))                                                \
    X(cuDeviceGetCount, true, (int* count))                                                                        \
    X(cuDeviceGet, true, (CuDevice * device, int ordinal))                                                         \
    X(cuDeviceGetName, true, (char* name, int size, CuDevice device))                                              \
    X(cuDeviceGetAttribute, true, (int* value, CuDeviceAttribute attribute, CuDevice device))                      \
    X(cuDevicePrimaryCtxRetain, true, (CuContext * context, CuDevice device))                                      \
    X(cuDevicePrimaryCtxRelease_v2, true, (CuDevice device))                                                       \
    X(cuCtxPushCurrent_v2, true, (CuContext context))                                                              \
    X(cuCtxPopCurrent_v2, true, (CuContext * context))                                                             \
    X(cuCtxGetStreamPriorityRange, true, (int* least, int* greatest))                                              \
    X(cuThreadExchangeStreamCaptureMode, true, (CuCaptureMode * mode))                                             \
    X(cuMemGetInfo_v2, true, (std::size_t * free, std::size_t * total))                                            \
    X(cuMemAlloc_v2, true, (CuPointer * address, std::size_t size))                                                \
    X(cuMemFree_v2, true, (CuPointer address))                                                                     \
    X(cuMemHostRegister_v2, true, (void* address, std::size_t size, unsigned flags))                               \
    X(cuMemHostUnregister, true, (void* address))                                                                  \
    X(cuMemcpyHtoDAsync_v2, true, (CuPointer to, const void* from, std::size_t size, CuStream stream))             \
    X(cuMemcpyDtoHAsync_v2, true, (void* to, CuPointer from, std::size_t size, CuStream stream))                   \
    X(cuMemcpy2DAsync_v2, true, (const CuCopy2D* copy, CuStream stream))                                           \
    X(cuStreamCreateWithPriority, true, (CuStream * stream, unsigned flags, int priority))                         \
    X(cuStreamDestroy_v2, true, (CuStream stream))                                                                 \
    X(cuStreamWaitEvent, true, (CuStream stream, CuEvent event, unsigned flags))                                   \
    X(cuStreamSynchronize, true, (CuStream stream))                                                                \
    X(cuStreamIsCapturing, true, (CuStream stream, CuCaptureStatus * status))                                      \
    X(cuEventCreate, true, (CuEvent * event, unsigned flags))                                                      \
    X(cuEventDestroy_v2, true, (CuEvent event))                                                                    \
    X(cuEventRecord, true, (CuEvent event, CuStream stream))                                                       \
    X(cuEventQuery, true, (CuEvent event))                                                                         \
    X(cuEventSynchronize, true, (CuEvent event))                                                                   \
    X(cuMemPoolCreate, false, (CuMemoryPool * pool, const CuPoolProperties* properties))                           \
    X(cuMemPoolDestroy, false, (CuMemoryPool pool))                                                                \
    X(cuMemPoolSetAttribute, false, (CuMemoryPool pool, CuPoolAttribute attribute, void* value))                   \
    X(cuMemPoolGetAttribute, false, (CuMemoryPool pool, CuPoolAttribute attribute, void* value))                   \
    X(cuMemPoolTrimTo, false, (CuMemoryPool pool, std::size_t keep))                                               \
    X(cuMemAllocFromPoolAsync, false, (CuPointer * address, std::size_t size, CuMemoryPool pool, CuStream stream)) \
    X(cuMemFreeAsync, false, (CuPointer address, CuStream stream))                                                 \
    X(cuMemGetAllocationGranularity, false,                                                                        \
      (std::size_t * granularity, const CuMemoryProperties* properties, int which))                                \
    X(cuMemAddressReserve, false,                                                                                  \
      (CuPointer * address, std::size_t size, std::size_t alignment, CuPointer wanted, unsigned long long flags))  \
    X(cuMemAddressFree, false, (CuPointer address, std::size_t size))                                              \
    X(cuMemCreate, false,                                                                                          \
      (CuMemoryHandle * handle, std::size_t size, const CuMemoryProperties* properties, unsigned long long flags)) \
    X(cuMemRelease, false, (CuMemoryHandle handle))                                                                \
    X(cuMemMap, false,                                                                                             \
      (CuPointer address, std::size_t size, std::size_t offset, CuMemoryHandle handle, unsigned long long flags))  \
    X(cuMemUnmap, false, (CuPointer address, std::size_t size))                                                    \
    X(cuMemSetAccess, false, (CuPointer address, std::size_t size, const CuMemoryAccess* access, std::size_t count))

/// Pointers to the functions of a driver.
struct CudaApi {
#define SAFEMAP_CUDA_POINTER(name, required, parameters) CuResult(*name) parameters = nullptr;
    SAFEMAP_CUDA_FUNCTIONS(SAFEMAP_CUDA_POINTER)
#undef SAFEMAP_CUDA_POINTER

    /// Returns true if the driver has the functions of memory pools.
    bool has_pools() const noexcept;
    /// Returns true if the driver has the functions of virtual memory.
    bool has_virtual_memory() const noexcept;
    /// Returns a description of an error: "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)".
    std::string text(CuResult result) const;
};

/// Loads the functions of a driver from `library`. Calls none of them.
LoadedLibrary load_cuda(const char* library, CudaApi& api);

/// The CUDA driver of this process.
struct CudaDriver {
    CudaApi api;
    LoadedLibrary library;
};

/// Returns the driver in libcuda.so.1. The first call loads it. Thread-safe.
const CudaDriver& cuda_driver();

}  // namespace safemap::SAFEMAP_ABI::drivers
