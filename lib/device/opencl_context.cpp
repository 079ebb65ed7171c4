#include "device/opencl_context.hpp"

#include "base/text.hpp"

#include <unistd.h>

#include <utility>

namespace safemap::SAFEMAP_ABI::device {

Error opencl_failure(const std::string& device, ClResult result, const char* call) {
    return {Errc::device_failed, "the device " + safemap::quoted(device) + " failed: " + call + ": " + text(result)};
}

OpenclContext::OpenclContext(const OpenclApi& api, ClContext context, ClDevice device, std::string name)
    : api_(api), name_(std::move(name)), process_(::getpid()), context_(context), device_(device) {
    const ClResult retained = api_.clRetainContext(context_);
    if (retained != ClResult::success) throw opencl_failure(name_, retained, "clRetainContext");
    api_.clRetainDevice(device_);  // does nothing, unless the device is a part of another one
    try {
        demand_ = make_queue();
        bulk_ = make_queue();
        side_ = make_queue();
        largest_allocation_ = number(ClDeviceInfo::max_mem_alloc_size);
        total_memory_ = number(ClDeviceInfo::global_mem_size);
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
    if (result != ClResult::success) throw opencl_failure(name_, result, "clCreateCommandQueue");
    return queue;
}

std::uint64_t OpenclContext::number(ClDeviceInfo info) const {
    std::uint64_t value = 0;
    const ClResult result = api_.clGetDeviceInfo(device_, info, sizeof value, &value, nullptr);
    if (result != ClResult::success) throw opencl_failure(name_, result, "clGetDeviceInfo");
    return value;
}

// The threads of an implementation do not exist in a child.
bool OpenclContext::is_child() const noexcept { return ::getpid() != process_; }

bool OpenclContext::is_lost() const noexcept { return failed_.load(std::memory_order_acquire) || is_child(); }

void OpenclContext::require_working() const {
    if (!is_lost()) return;
    if (is_child())
        throw Error(Errc::device_failed, "the device " + safemap::quoted(name_) + " was opened before a fork")
            .with_hint("Open the device in the process that uses it.");
    const std::lock_guard lock(mutex_);
    throw opencl_failure(name_, failure_, failed_call_);
}

void OpenclContext::check(ClResult result, const char* call) {
    if (result == ClResult::success) return;
    note_failure(result, call);
    throw opencl_failure(name_, result, call);
}

void OpenclContext::note_failure(ClResult result, const char* call) noexcept {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = result;
    failed_call_ = call;
    failed_.store(true, std::memory_order_release);
}

}  // namespace safemap::SAFEMAP_ABI::device
