// Opens a CUDA context with its streams, its memory pool and its events, and closes them in order.
#include "drivers/cuda_context.hpp"

#include <safemap/error.hpp>

#include <cstddef>
#include <limits>
#include <string>

namespace safemap::SAFEMAP_ABI::drivers {

CudaContext::CudaContext(const CudaApi& api, int ordinal)
    : DeviceHealth("cuda:" + std::to_string(ordinal)), api_(api) {}

std::shared_ptr<CudaContext> CudaContext::open(const CudaApi& api, int ordinal) {
    std::shared_ptr<CudaContext> context(new CudaContext(api, ordinal));
    context->start(ordinal);
    context->require_working();
    context->opened_ = true;
    return context;
}

void CudaContext::start(int ordinal) {
    require(api_.cuDeviceGet(&device_, ordinal), "cuDeviceGet");
    int pitch = 0;
    require(api_.cuDeviceGetAttribute(&pitch, CuDeviceAttribute::max_pitch, device_), "cuDeviceGetAttribute");
    max_pitch_ = pitch < 0 ? 0 : static_cast<std::uint64_t>(pitch);
    CuContext retained = nullptr;
    require(api_.cuDevicePrimaryCtxRetain(&retained, device_), "cuDevicePrimaryCtxRetain");
    context_ = retained;

    const CudaEntry entry(*this, CudaEntry::If::retained);
    std::size_t free = 0;
    std::size_t total = 0;
    require(api_.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    total_memory_ = total;
    int least = 0;
    int greatest = 0;
    require(api_.cuCtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
    const auto make = [this](CuStream& stream, int priority) {
        // A stream that is not non-blocking would wait for the legacy default stream, and it for the stream.
        require(api_.cuStreamCreateWithPriority(&stream, cu_stream_non_blocking, priority),
                "cuStreamCreateWithPriority");
    };
    make(demand_, greatest);
    make(bulk_, least);
    make(side_, greatest);
    make_pool();
}

/// Makes a pool of our own: the settings of the device's default pool are other libraries' business. A pool takes and
/// frees memory without waiting for the kernels that run, which cuMemFree does.
void CudaContext::make_pool() {
    if (!api_.has_pools()) return;
    int supported = 0;
    // A driver that does not know the attribute has no pools.
    const CuResult known = api_.cuDeviceGetAttribute(&supported, CuDeviceAttribute::memory_pools_supported, device_);
    if (known == CuResult::invalid_value) return;
    require(known, "cuDeviceGetAttribute");
    if (supported == 0) return;
    CuPoolProperties properties;
    properties.location_id = device_;
    require(api_.cuMemPoolCreate(&pool_, &properties), "cuMemPoolCreate");
    std::uint64_t threshold = std::numeric_limits<std::uint64_t>::max();
    require(api_.cuMemPoolSetAttribute(pool_, CuPoolAttribute::release_threshold, &threshold), "cuMemPoolSetAttribute");
}

std::uint64_t CudaContext::granularity() {
    int supported = 0;
    if (api_.has_virtual_memory()) {
        const auto attribute = CuDeviceAttribute::virtual_memory_supported;
        const CuResult known = api_.cuDeviceGetAttribute(&supported, attribute, device_);
        if (known != CuResult::invalid_value) check(known, "cuDeviceGetAttribute");
    }
    if (supported == 0)
        throw Error(Errc::invalid_argument, "the device '" + name() +
                                                "' cannot keep addresses: its driver has no virtual memory "
                                                "management (cuMemMap)");
    std::size_t granularity = 0;
    const CuMemoryProperties properties{.location = location()};
    check(api_.cuMemGetAllocationGranularity(&granularity, &properties, cu_granularity_minimum),
          "cuMemGetAllocationGranularity");
    return granularity;
}

CudaContext::~CudaContext() {
    if (context_ == nullptr || is_child() || (opened_ && is_lost())) return;
    const auto give_back = [this] {
        const CudaEntry entry(*this, CudaEntry::If::retained);
        // Errors change nothing: each of these is given back as far as possible.
        for (const CuEvent event : free_events_) static_cast<void>(api_.cuEventDestroy_v2(event));
        if (pool_ != nullptr) {
            static_cast<void>(api_.cuStreamSynchronize(side_));  // memory of the pool is freed in this stream
            static_cast<void>(api_.cuMemPoolTrimTo(pool_, 0));
            static_cast<void>(api_.cuMemPoolDestroy(pool_));
        }
        for (const CuStream stream : {demand_, bulk_, side_})
            if (stream != nullptr) static_cast<void>(api_.cuStreamDestroy_v2(stream));
    };
    try {
        give_back();
    } catch (const std::exception&) {  // the context did not become current
    }
    static_cast<void>(api_.cuDevicePrimaryCtxRelease_v2(device_));
}

void CudaContext::check(CuResult result, const char* call) {
    if (result == CuResult::success) return;
    if (is_about_the_call(result)) throw_refused(static_cast<int>(result), call);
    note_failure(result, call);
    require_working();
}

void CudaContext::require(CuResult result, const char* call) const {
    if (result == CuResult::success) return;
    throw Error(result == CuResult::out_of_memory ? Errc::out_of_memory : Errc::device_failed,
                "the device '" + name() + "' cannot be opened: " + call + ": " + api_.text(result));
}

CuEvent CudaContext::take_event() {
    {
        const std::lock_guard lock(mutex_);
        if (!free_events_.empty()) {
            const CuEvent event = free_events_.back();
            free_events_.pop_back();
            return event;
        }
        free_events_.reserve(++events_);  // so that give_event() needs no memory
    }
    CuEvent event = nullptr;
    // Threads that wait sleep, and do not take processors from the readers.
    check(api_.cuEventCreate(&event, cu_event_disable_timing | cu_event_blocking_sync), "cuEventCreate");
    return event;
}

void CudaContext::give_event(CuEvent event) noexcept {
    const std::lock_guard lock(mutex_);
    free_events_.push_back(event);
}

CudaEntry::CudaEntry(CudaContext& context, If condition) : context_(context) {
    if (condition == If::working || context.is_child()) context.require_working();
    context.check(context.api().cuCtxPushCurrent_v2(context.context_), "cuCtxPushCurrent");
    const CuResult exchanged = context.api().cuThreadExchangeStreamCaptureMode(&mode_);
    if (exchanged == CuResult::success) return;
    CuContext popped = nullptr;
    static_cast<void>(context.api().cuCtxPopCurrent_v2(&popped));
    context.check(exchanged, "cuThreadExchangeStreamCaptureMode");
}

CudaEntry::~CudaEntry() {
    const CuResult exchanged = context_.api().cuThreadExchangeStreamCaptureMode(&mode_);
    if (exchanged != CuResult::success) context_.note_failure(exchanged, "cuThreadExchangeStreamCaptureMode");
    CuContext popped = nullptr;
    const CuResult result = context_.api().cuCtxPopCurrent_v2(&popped);
    if (result != CuResult::success) context_.note_failure(result, "cuCtxPopCurrent");
}

}  // namespace safemap::SAFEMAP_ABI::drivers
