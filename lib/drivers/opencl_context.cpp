// Makes and releases the queues of an OpenCL context, and checks the results of calls.
#include "drivers/opencl_context.hpp"

#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {

OpenclContext::OpenclContext(const OpenclApi& api, ClContext context, ClDevice device, std::string name)
    : DeviceHealth(std::move(name)), api_(api), context_(context), device_(device) {
    check(api_.clRetainContext(context_), "clRetainContext");
    api_.clRetainDevice(device_);  // does nothing, unless the device is a part of another one
    try {
        demand_ = make_queue();
        bulk_ = make_queue();
        side_ = make_queue();
        largest_allocation_ = ask<std::uint64_t>(ClDeviceInfo::max_mem_alloc_size);
        total_memory_ = ask<std::uint64_t>(ClDeviceInfo::global_mem_size);
        has_unified_memory_ = ask<ClBool>(ClDeviceInfo::host_unified_memory) != 0;
        is_cpu_ = (ask<ClFlags>(ClDeviceInfo::type) & cl_device_type_cpu) != 0;
    } catch (const Error&) {
        release();
        throw;
    }
}

OpenclContext::~OpenclContext() {
    // A failed device may still use its objects, so they are not released.
    if (!is_lost()) release();
}

void OpenclContext::release() noexcept {
    for (ClQueue const queue : {demand_, bulk_, side_}) {
        if (queue != nullptr) api_.clReleaseCommandQueue(queue);
    }
    api_.clReleaseDevice(device_);
    api_.clReleaseContext(context_);
}

ClQueue OpenclContext::make_queue() {
    ClResult result = ClResult::success;
    ClQueue const queue = api_.clCreateCommandQueue(context_, device_, 0, &result);  // 0: in order
    check(result, "clCreateCommandQueue");
    return queue;
}

template <class Value> Value OpenclContext::ask(ClDeviceInfo info) {
    Value value = 0;
    check(api_.clGetDeviceInfo(device_, info, sizeof value, &value, nullptr), "clGetDeviceInfo");
    return value;
}

void OpenclContext::check(ClResult result, const char* call) {
    if (result == ClResult::success) return;
    if (is_about_the_call(result)) throw_refused(static_cast<int>(result), call);
    note_failure(result, call);
    require_working();
}

}  // namespace safemap::SAFEMAP_ABI::drivers
