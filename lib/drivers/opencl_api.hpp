// The functions of OpenCL that safemap calls, with their types. They are declared here, so no build needs OpenCL, and
// looked up in libOpenCL.so.1 while a program runs. opencl_abi.cpp compares them with <CL/cl.h> where a build finds
// one.
#pragma once

#include "drivers/library.hpp"

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {

enum class ClResult : std::int32_t {
    success = 0,
    device_not_found = -1,
    mem_object_allocation_failure = -4,
    out_of_resources = -5,
    out_of_host_memory = -6,
    map_failure = -12,
    exec_status_error_for_events_in_wait_list = -14,
    invalid_value = -30,
    invalid_context = -34,
    invalid_command_queue = -36,
    invalid_mem_object = -38,
    invalid_buffer_size = -61,
    platform_not_found = -1001,  ///< no implementation of OpenCL is installed
};

/// Returns true for an error that is about the arguments of one call, which is not enqueued then (OpenCL 3.0, 5.2 to
/// 5.4). All others end the device.
constexpr bool is_about_the_call(ClResult result) noexcept {
    return result == ClResult::invalid_value || result == ClResult::invalid_mem_object ||
           result == ClResult::invalid_buffer_size;
}

using ClPlatform = struct ClPlatformObject*;
using ClDevice = struct ClDeviceObject*;
using ClContext = struct ClContextObject*;
using ClQueue = struct ClQueueObject*;
using ClMemory = struct ClMemoryObject*;
using ClEvent = struct ClEventObject*;
using ClBool = std::uint32_t;
using ClFlags = std::uint64_t;

enum class ClDeviceInfo : std::uint32_t {
    type = 0x1000,
    max_mem_alloc_size = 0x1010,
    global_mem_size = 0x101F,
    name = 0x102B,
    host_unified_memory = 0x1035,
    version = 0x102F,
};
enum class ClContextInfo : std::uint32_t { devices = 0x1081 };
enum class ClQueueInfo : std::uint32_t { context = 0x1090 };
enum class ClMemoryInfo : std::uint32_t { size = 0x1102, context = 0x1106 };
enum class ClEventInfo : std::uint32_t { command_execution_status = 0x11D3 };

constexpr ClFlags cl_device_type_all = 0xFFFFFFFF;
constexpr ClFlags cl_device_type_cpu = 1 << 1;
constexpr ClFlags cl_mem_read_write = 1;
constexpr ClFlags cl_mem_use_host_ptr = 1 << 3;
constexpr ClFlags cl_mem_alloc_host_ptr = 1 << 4;
constexpr ClFlags cl_map_read_write = 3;
constexpr ClFlags cl_map_write_invalidate_region = 4;
constexpr ClFlags cl_migrate_content_undefined = 2;
constexpr std::int32_t cl_complete = 0;

using ClNotify = void (*)(const char*, const void*, std::size_t, void*);
using ClDestructor = void (*)(ClMemory, void*);

// X(name in the library, result, parameters). OpenCL 1.2 has all of them. Work that is queued takes a list of
// events to wait for, and gives an event.
#define SAFEMAP_CL_EVENTS std::uint32_t waits, const ClEvent *wait_list, ClEvent *event
#define SAFEMAP_OPENCL_FUNCTIONS(X)                                                                                    \
    X(clGetPlatformIDs, ClResult, (std::uint32_t most, ClPlatform * platforms, std::uint32_t * count))                 \
    X(clGetDeviceIDs, ClResult,                                                                                        \
      (ClPlatform platform, ClFlags types, std::uint32_t most, ClDevice * devices, std::uint32_t * count))             \
    X(clGetDeviceInfo, ClResult,                                                                                       \
      (ClDevice device, ClDeviceInfo info, std::size_t size, void* value, std::size_t* needed))                        \
    X(clRetainDevice, ClResult, (ClDevice device))                                                                     \
    X(clReleaseDevice, ClResult, (ClDevice device))                                                                    \
    X(clCreateContext, ClContext,                                                                                      \
      (const std::intptr_t* properties, std::uint32_t count, const ClDevice* devices, ClNotify notify, void* user,     \
       ClResult* result))                                                                                              \
    X(clGetContextInfo, ClResult,                                                                                      \
      (ClContext context, ClContextInfo info, std::size_t size, void* value, std::size_t* needed))                     \
    X(clRetainContext, ClResult, (ClContext context))                                                                  \
    X(clReleaseContext, ClResult, (ClContext context))                                                                 \
    X(clCreateCommandQueue, ClQueue, (ClContext context, ClDevice device, ClFlags properties, ClResult * result))      \
    X(clGetCommandQueueInfo, ClResult,                                                                                 \
      (ClQueue queue, ClQueueInfo info, std::size_t size, void* value, std::size_t* needed))                           \
    X(clReleaseCommandQueue, ClResult, (ClQueue queue))                                                                \
    X(clCreateBuffer, ClMemory, (ClContext context, ClFlags flags, std::size_t size, void* host, ClResult* result))    \
    X(clGetMemObjectInfo, ClResult,                                                                                    \
      (ClMemory memory, ClMemoryInfo info, std::size_t size, void* value, std::size_t* needed))                        \
    X(clSetMemObjectDestructorCallback, ClResult, (ClMemory memory, ClDestructor destructor, void* user))              \
    X(clRetainMemObject, ClResult, (ClMemory memory))                                                                  \
    X(clReleaseMemObject, ClResult, (ClMemory memory))                                                                 \
    X(clEnqueueMigrateMemObjects, ClResult,                                                                            \
      (ClQueue queue, std::uint32_t count, const ClMemory* memory, ClFlags flags, SAFEMAP_CL_EVENTS))                  \
    X(clEnqueueReadBuffer, ClResult,                                                                                   \
      (ClQueue queue, ClMemory from, ClBool blocking, std::size_t offset, std::size_t size, void* to,                  \
       SAFEMAP_CL_EVENTS))                                                                                             \
    X(clEnqueueWriteBuffer, ClResult,                                                                                  \
      (ClQueue queue, ClMemory to, ClBool blocking, std::size_t offset, std::size_t size, const void* from,            \
       SAFEMAP_CL_EVENTS))                                                                                             \
    X(clEnqueueWriteBufferRect, ClResult,                                                                              \
      (ClQueue queue, ClMemory to, ClBool blocking, const std::size_t* to_origin, const std::size_t* from_origin,      \
       const std::size_t* region, std::size_t to_row_pitch, std::size_t to_slice_pitch, std::size_t from_row_pitch,    \
       std::size_t from_slice_pitch, const void* from, SAFEMAP_CL_EVENTS))                                             \
    X(clEnqueueMapBuffer, void*,                                                                                       \
      (ClQueue queue, ClMemory memory, ClBool blocking, ClFlags flags, std::size_t offset, std::size_t size,           \
       SAFEMAP_CL_EVENTS, ClResult * result))                                                                          \
    X(clEnqueueUnmapMemObject, ClResult, (ClQueue queue, ClMemory memory, void* mapped, SAFEMAP_CL_EVENTS))            \
    X(clEnqueueMarkerWithWaitList, ClResult, (ClQueue queue, SAFEMAP_CL_EVENTS))                                       \
    X(clEnqueueBarrierWithWaitList, ClResult, (ClQueue queue, SAFEMAP_CL_EVENTS))                                      \
    X(clGetEventInfo, ClResult, (ClEvent event, ClEventInfo info, std::size_t size, void* value, std::size_t* needed)) \
    X(clWaitForEvents, ClResult, (std::uint32_t count, const ClEvent* events))                                         \
    X(clReleaseEvent, ClResult, (ClEvent event))                                                                       \
    X(clFlush, ClResult, (ClQueue queue))                                                                              \
    X(clFinish, ClResult, (ClQueue queue))

/// Pointers to the functions of OpenCL.
struct OpenclApi {
#define SAFEMAP_OPENCL_POINTER(name, result, parameters) result(*name) parameters = nullptr;
    SAFEMAP_OPENCL_FUNCTIONS(SAFEMAP_OPENCL_POINTER)
#undef SAFEMAP_OPENCL_POINTER
};

/// Returns the name of an error: "CL_OUT_OF_RESOURCES", or "OpenCL error -9999".
std::string text(ClResult result);
/// Returns true if an allocation or a mapping failed because there is no memory.
constexpr bool is_out_of_memory(ClResult result) noexcept {
    return result == ClResult::mem_object_allocation_failure || result == ClResult::out_of_resources ||
           result == ClResult::out_of_host_memory || result == ClResult::invalid_buffer_size ||
           result == ClResult::map_failure;
}

/// Loads the functions from `library`. Calls none of them.
LoadedLibrary load_opencl(const char* library, OpenclApi& api);

/// OpenCL in this process.
struct OpenclDriver {
    OpenclApi api;
    LoadedLibrary library;
};

/// Returns the functions in libOpenCL.so.1. The first call loads it. Thread-safe.
const OpenclDriver& opencl_driver();

}  // namespace safemap::SAFEMAP_ABI::drivers
