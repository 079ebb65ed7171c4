// Compares the declarations of cuda_api.hpp with <cuda.h>, where the compiler finds one. Has no code of its own.

#if __has_include(<cuda.h>)

#include "drivers/cuda_api.hpp"

#include <cuda.h>

#include <cstddef>
#include <type_traits>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

/// True if a caller passes A as it passes B: in a register of the same size, as an integer or as a pointer.
template <class A, class B>
constexpr bool passed_alike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_floating_point_v<A> ==
                                  std::is_floating_point_v<B>;

template <class A, class B> constexpr bool called_alike = false;
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) constexpr bool called_alike<R (*)(A...), S (*)(B...)> = passed_alike<R, S> &&
                                                                                               (passed_alike<A, B> &&
                                                                                                ...);

#define SAFEMAP_CUDA_SAME(name, required, parameters) \
    static_assert(called_alike<decltype(CudaApi::name), decltype(&::name)>, #name);
SAFEMAP_CUDA_FUNCTIONS(SAFEMAP_CUDA_SAME)
#undef SAFEMAP_CUDA_SAME

template <class Ours, class Theirs> constexpr bool equal(Ours ours, Theirs theirs) {
    return static_cast<long long>(ours) == static_cast<long long>(theirs);
}

static_assert(equal(CuResult::success, CUDA_SUCCESS));
static_assert(equal(CuResult::invalid_value, CUDA_ERROR_INVALID_VALUE));
static_assert(equal(CuResult::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(equal(CuResult::not_initialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(equal(CuResult::no_device, CUDA_ERROR_NO_DEVICE));
static_assert(equal(CuResult::invalid_context, CUDA_ERROR_INVALID_CONTEXT));
static_assert(equal(CuResult::operating_system, CUDA_ERROR_OPERATING_SYSTEM));
static_assert(equal(CuResult::invalid_handle, CUDA_ERROR_INVALID_HANDLE));
static_assert(equal(CuResult::not_ready, CUDA_ERROR_NOT_READY));
static_assert(equal(CuResult::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(equal(CuResult::host_memory_already_registered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
static_assert(equal(CuResult::launch_failed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(equal(CuResult::not_permitted, CUDA_ERROR_NOT_PERMITTED));
static_assert(equal(CuResult::not_supported, CUDA_ERROR_NOT_SUPPORTED));
static_assert(equal(CuResult::stream_capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(equal(CuResult::stream_capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
static_assert(equal(CuResult::stream_capture_isolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
static_assert(equal(CuResult::stream_capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
static_assert(equal(CuResult::captured_event, CUDA_ERROR_CAPTURED_EVENT));
static_assert(equal(CuResult::stream_capture_wrong_thread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
static_assert(equal(CuResult::unknown, CUDA_ERROR_UNKNOWN));
static_assert(equal(CuDeviceAttribute::max_pitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH));
static_assert(equal(CuDeviceAttribute::virtual_memory_supported,
                    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(equal(CuDeviceAttribute::memory_pools_supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
static_assert(equal(CuCaptureMode::global, CU_STREAM_CAPTURE_MODE_GLOBAL));
static_assert(equal(CuCaptureMode::thread_local_mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
static_assert(equal(CuCaptureMode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(equal(CuCaptureStatus::none, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(equal(CuCaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(equal(CuCaptureStatus::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(equal(CuMemoryType::host, CU_MEMORYTYPE_HOST));
static_assert(equal(CuMemoryType::device, CU_MEMORYTYPE_DEVICE));
static_assert(equal(CuPoolAttribute::release_threshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
static_assert(equal(CuPoolAttribute::reserved_now, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
static_assert(equal(CuPoolAttribute::used_now, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
static_assert(equal(cu_stream_non_blocking, CU_STREAM_NON_BLOCKING));
static_assert(equal(cu_event_blocking_sync, CU_EVENT_BLOCKING_SYNC));
static_assert(equal(cu_event_disable_timing, CU_EVENT_DISABLE_TIMING));
static_assert(equal(cu_host_register_portable, CU_MEMHOSTREGISTER_PORTABLE));

static_assert(sizeof(CuCopy2D) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(CuCopy2D, src_type) == offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(CuCopy2D, src_host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(CuCopy2D, src_device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(CuCopy2D, src_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(CuCopy2D, dst_x) == offsetof(CUDA_MEMCPY2D, dstXInBytes));
static_assert(offsetof(CuCopy2D, dst_type) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(CuCopy2D, dst_host) == offsetof(CUDA_MEMCPY2D, dstHost));
static_assert(offsetof(CuCopy2D, dst_device) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(CuCopy2D, dst_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(CuCopy2D, width) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(CuCopy2D, height) == offsetof(CUDA_MEMCPY2D, Height));

static_assert(sizeof(CuPoolProperties) == sizeof(CUmemPoolProps));
static_assert(offsetof(CuPoolProperties, handle_types) == offsetof(CUmemPoolProps, handleTypes));
static_assert(offsetof(CuPoolProperties, location_type) == offsetof(CUmemPoolProps, location.type));
static_assert(offsetof(CuPoolProperties, location_id) == offsetof(CUmemPoolProps, location.id));
static_assert(offsetof(CuPoolProperties, security_attributes) == offsetof(CUmemPoolProps, win32SecurityAttributes));
static_assert(equal(CuPoolProperties().allocation_type, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(equal(CuPoolProperties().handle_types, CU_MEM_HANDLE_TYPE_NONE));
static_assert(equal(CuPoolProperties().location_type, CU_MEM_LOCATION_TYPE_DEVICE));

static_assert(sizeof(CuMemoryProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(CuMemoryProperties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(CuMemoryProperties, location.type) == offsetof(CUmemAllocationProp, location.type));
static_assert(offsetof(CuMemoryProperties, location.id) == offsetof(CUmemAllocationProp, location.id));
static_assert(offsetof(CuMemoryProperties, handle_data) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(CuMemoryProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(CuMemoryAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(CuMemoryAccess, location) == offsetof(CUmemAccessDesc, location));
static_assert(offsetof(CuMemoryAccess, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(equal(CuMemoryAccess().flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(equal(cu_granularity_minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));

}  // namespace
}  // namespace safemap::SAFEMAP_ABI::drivers

#endif
