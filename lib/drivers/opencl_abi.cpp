// Compares the declarations of opencl_api.hpp with <CL/cl.h>, where the compiler finds one. Has no code of its own.

#if __has_include(<CL/cl.h>)

#define CL_TARGET_OPENCL_VERSION 120

#include "drivers/opencl_api.hpp"

#include <CL/cl.h>

#include <type_traits>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

/// True if a caller passes A as it passes B: in a register of the same size, as an integer or as a pointer.
template <class A, class B>
constexpr bool same_register = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <class A, class B> constexpr bool same_call = false;
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) constexpr bool same_call<R (*)(A...), S (*)(B...)> = same_register<R, S> &&
                                                                                            (same_register<A, B> &&
                                                                                             ...);

#define SAFEMAP_OPENCL_SAME(name, result, parameters) \
    static_assert(same_call<decltype(OpenclApi::name), decltype(&::name)>, #name);
SAFEMAP_OPENCL_FUNCTIONS(SAFEMAP_OPENCL_SAME)
#undef SAFEMAP_OPENCL_SAME

template <class Ours, class Theirs> constexpr bool same_number(Ours ours, Theirs theirs) {
    return static_cast<long long>(ours) == static_cast<long long>(theirs);
}

static_assert(same_number(ClResult::success, CL_SUCCESS));
static_assert(same_number(ClResult::device_not_found, CL_DEVICE_NOT_FOUND));
static_assert(same_number(ClResult::mem_object_allocation_failure, CL_MEM_OBJECT_ALLOCATION_FAILURE));
static_assert(same_number(ClResult::out_of_resources, CL_OUT_OF_RESOURCES));
static_assert(same_number(ClResult::out_of_host_memory, CL_OUT_OF_HOST_MEMORY));
static_assert(same_number(ClResult::map_failure, CL_MAP_FAILURE));
static_assert(same_number(ClResult::exec_status_error_for_events_in_wait_list,
                          CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST));
static_assert(same_number(ClResult::invalid_value, CL_INVALID_VALUE));
static_assert(same_number(ClResult::invalid_context, CL_INVALID_CONTEXT));
static_assert(same_number(ClResult::invalid_command_queue, CL_INVALID_COMMAND_QUEUE));
static_assert(same_number(ClResult::invalid_mem_object, CL_INVALID_MEM_OBJECT));
static_assert(same_number(ClResult::invalid_buffer_size, CL_INVALID_BUFFER_SIZE));
static_assert(same_number(ClDeviceInfo::type, CL_DEVICE_TYPE));
static_assert(same_number(ClDeviceInfo::max_mem_alloc_size, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
static_assert(same_number(ClDeviceInfo::global_mem_size, CL_DEVICE_GLOBAL_MEM_SIZE));
static_assert(same_number(ClDeviceInfo::name, CL_DEVICE_NAME));
static_assert(same_number(ClDeviceInfo::version, CL_DEVICE_VERSION));
static_assert(same_number(ClDeviceInfo::host_unified_memory, CL_DEVICE_HOST_UNIFIED_MEMORY));
static_assert(same_number(ClContextInfo::devices, CL_CONTEXT_DEVICES));
static_assert(same_number(ClQueueInfo::context, CL_QUEUE_CONTEXT));
static_assert(same_number(ClMemoryInfo::size, CL_MEM_SIZE));
static_assert(same_number(ClMemoryInfo::context, CL_MEM_CONTEXT));
static_assert(same_number(ClEventInfo::command_execution_status, CL_EVENT_COMMAND_EXECUTION_STATUS));
static_assert(same_number(cl_device_type_all, CL_DEVICE_TYPE_ALL));
static_assert(same_number(cl_device_type_cpu, CL_DEVICE_TYPE_CPU));
static_assert(same_number(cl_mem_read_write, CL_MEM_READ_WRITE));
static_assert(same_number(cl_mem_use_host_ptr, CL_MEM_USE_HOST_PTR));
static_assert(same_number(cl_mem_alloc_host_ptr, CL_MEM_ALLOC_HOST_PTR));
static_assert(same_number(cl_map_read_write, CL_MAP_READ | CL_MAP_WRITE));
static_assert(same_number(cl_map_write_invalidate_region, CL_MAP_WRITE_INVALIDATE_REGION));
static_assert(same_number(cl_migrate_content_undefined, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED));
static_assert(same_number(cl_complete, CL_COMPLETE));

}  // namespace
}  // namespace safemap::SAFEMAP_ABI::drivers

#endif
