// Implements Device for CUDA, and finds and lists the GPUs.
#include "drivers/cuda_device.hpp"

#include "base/text.hpp"
#include "drivers/backend.hpp"
#include "drivers/cuda_context.hpp"
#include "drivers/cuda_memory.hpp"
#include "drivers/cuda_queue.hpp"

#include <safemap/error.hpp>

#include <array>
#include <bit>
#include <utility>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

/// Returns true if an error is about a stream of the caller: a stream of another context, or one that is captured.
bool is_about_the_stream(CuResult result) noexcept {
    return result == CuResult::invalid_handle || result == CuResult::invalid_context ||
           (result >= CuResult::stream_capture_unsupported && result <= CuResult::stream_capture_wrong_thread);
}

class CudaDevice final : public Device {
public:
    explicit CudaDevice(std::shared_ptr<CudaContext> context)
        : context_(std::move(context)), demand_(context_, Lane::demand), bulk_(context_, Lane::bulk) {}

    const std::string& name() const noexcept override { return context_->name(); }
    std::uint64_t free_memory() const override;
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) override {
        return std::make_shared<CudaMemory>(context_, size);
    }
    std::shared_ptr<DeviceMemory> reserve(std::uint64_t size) override {
        return std::make_shared<CudaReserved>(context_, size);
    }
    std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) override {
        return std::make_shared<CudaStaging>(context_, size);
    }
    DeviceQueue& queue(Lane lane) override { return lane == Lane::demand ? demand_ : bulk_; }
    std::shared_ptr<DeviceMemory> borrow(void* handle, std::uint64_t size) override;
    void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) override;
    NativeStream::Kind stream_kind() const noexcept override { return NativeStream::Kind::cuda; }
    void make_wait(NativeStream stream, const DeviceEvent& event) override;
    std::shared_ptr<DeviceEvent> record(NativeStream stream) override;
    bool is_capturing(NativeStream stream) const override;

private:
    /// As CudaContext::check(), but throws invalid_argument if the caller's stream is at fault.
    void check_stream(CuResult result, const char* call) const;

    const std::shared_ptr<CudaContext> context_;
    CudaQueue demand_;
    CudaQueue bulk_;
};

std::uint64_t CudaDevice::free_memory() const {
    const CudaEntry entry(*context_);
    std::size_t free = 0;
    std::size_t total = 0;
    context_->check(context_->api().cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    if (context_->pool() == nullptr) return free;
    const auto ask = [&](CuPoolAttribute attribute) {
        std::uint64_t value = 0;
        context_->check(context_->api().cuMemPoolGetAttribute(context_->pool(), attribute, &value),
                        "cuMemPoolGetAttribute");
        return value;
    };
    const std::uint64_t used = ask(CuPoolAttribute::used_now);
    const std::uint64_t reserved = ask(CuPoolAttribute::reserved_now);
    return free + (reserved > used ? reserved - used : 0);
}

std::shared_ptr<DeviceMemory> CudaDevice::borrow(void* handle, std::uint64_t size) {
    if (handle == nullptr) throw Error(Errc::invalid_argument, "the memory to borrow is null");
    return std::make_shared<CudaBorrowed>(handle, size);
}

void CudaDevice::copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) {
    check_read(from, {offset, to.size()});
    const CudaEntry entry(*context_);
    if (to.empty()) return;
    const CuPointer at = std::bit_cast<CuPointer>(from.handle()) + offset;
    context_->check(context_->api().cuMemcpyDtoHAsync_v2(to.data(), at, to.size(), context_->side_stream()),
                    "cuMemcpyDtoHAsync");
    context_->check(context_->api().cuStreamSynchronize(context_->side_stream()), "cuStreamSynchronize");
}

void CudaDevice::check_stream(CuResult result, const char* call) const {
    if (is_about_the_stream(result))
        throw Error(Errc::invalid_argument, "a stream that the device '" + name() + "' cannot use: " + call + ": " +
                                                context_->api().text(result))
            .with_hint("Streams are of the device's primary context, and are not captured.");
    context_->check(result, call);
}

void CudaDevice::make_wait(NativeStream stream, const DeviceEvent& event) {
    if (stream.kind != NativeStream::Kind::cuda) return Device::make_wait(stream, event);
    const CudaEvent* const waited = cuda_event(*context_, event);
    if (waited == nullptr) return;
    const CudaEntry entry(*context_);
    check_stream(waited->put_before(static_cast<CuStream>(stream.handle)), "cuStreamWaitEvent");
}

std::shared_ptr<DeviceEvent> CudaDevice::record(NativeStream stream) {
    if (stream.kind != NativeStream::Kind::cuda) return Device::record(stream);
    const CudaEntry entry(*context_);
    auto event = std::make_shared<CudaEvent>(context_, static_cast<CuStream>(stream.handle));
    check_stream(event->recorded(), "cuEventRecord");
    return event;
}

bool CudaDevice::is_capturing(NativeStream stream) const {
    if (stream.kind != NativeStream::Kind::cuda) return Device::is_capturing(stream);
    const CudaEntry entry(*context_);
    CuCaptureStatus status = CuCaptureStatus::none;
    const CuResult result = context_->api().cuStreamIsCapturing(static_cast<CuStream>(stream.handle), &status);
    // The legacy default stream waits for streams of which one is captured, so nothing may be put into it.
    if (result == CuResult::stream_capture_implicit) return true;
    check_stream(result, "cuStreamIsCapturing");
    return status != CuCaptureStatus::none;
}

/// Returns the number of devices. Throws no_such_device if there is no driver, or it does not work.
int count_devices() {
    const CudaDriver& driver = cuda_driver();
    if (driver.library.state == LibraryState::absent)
        throw Error(Errc::no_such_device, "there is no CUDA driver: " + driver.library.fault);
    const auto broken = [](const std::string& why) {
        return Error(Errc::no_such_device, "the CUDA driver does not work: " + why);
    };
    if (!driver.library) throw broken(driver.library.fault).with_hint("Install a newer driver of NVIDIA.");
    const CuResult started = driver.api.cuInit(0);
    if (started == CuResult::no_device) return 0;
    if (started != CuResult::success) throw broken("cuInit: " + driver.api.text(started));
    int count = 0;
    const CuResult counted = driver.api.cuDeviceGetCount(&count);
    if (counted != CuResult::success) throw broken("cuDeviceGetCount: " + driver.api.text(counted));
    return count;
}

std::string describe_device(const CudaApi& api, int ordinal) {
    std::array<char, 256> name = {};
    CuDevice device = 0;
    std::string text = "cuda:" + std::to_string(ordinal);
    if (api.cuDeviceGet(&device, ordinal) == CuResult::success &&
        api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device) == CuResult::success)
        text += " (" + excerpt(name.data()) + ")";
    return text;
}

}  // namespace

std::shared_ptr<Device> open_cuda(std::string_view ordinal) {
    const auto number = parse_ordinal(ordinal);
    if (!number || std::cmp_greater_equal(*number, count_devices())) return nullptr;
    return std::make_shared<CudaDevice>(CudaContext::open(cuda_driver().api, static_cast<int>(*number)));
}

std::string list_cuda() {
    std::string all;
    try {
        for (int ordinal = 0, count = count_devices(); ordinal < count; ++ordinal)
            all += (all.empty() ? "" : ", ") + describe_device(cuda_driver().api, ordinal);
    } catch (const Error&) {  // a driver that does not work has no devices
        return {};
    }
    return all;
}

}  // namespace safemap::SAFEMAP_ABI::drivers
