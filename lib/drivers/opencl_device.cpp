// Implements Device for OpenCL, adopts contexts of the caller, and finds and lists the devices.
#include "drivers/opencl_device.hpp"

#include "base/text.hpp"
#include "drivers/backend.hpp"
#include "drivers/opencl_context.hpp"
#include "drivers/opencl_memory.hpp"
#include "drivers/opencl_queue.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::drivers {
namespace {

class OpenclDevice final : public Device {
public:
    explicit OpenclDevice(std::shared_ptr<OpenclContext> context)
        : context_(std::move(context)), demand_(context_, Lane::demand), bulk_(context_, Lane::bulk) {}

    const std::string& name() const noexcept override { return context_->name(); }
    std::uint64_t free_memory() const override;
    std::shared_ptr<DeviceMemory> allocate(std::uint64_t size) override {
        return std::make_shared<OpenclMemory>(context_, size);
    }
    std::shared_ptr<StagingBuffer> allocate_staging(std::uint64_t size) override {
        return std::make_shared<OpenclStaging>(context_, size);
    }
    std::shared_ptr<DeviceMemory> borrow(void* handle, std::uint64_t size) override {
        return std::make_shared<OpenclMemory>(context_, static_cast<ClMemory>(handle), size);
    }
    DeviceQueue& queue(Lane lane) override { return lane == Lane::demand ? demand_ : bulk_; }
    void copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) override;
    NativeStream::Kind stream_kind() const noexcept override { return NativeStream::Kind::opencl; }
    void make_wait(NativeStream stream, const DeviceEvent& event) override;
    std::shared_ptr<DeviceEvent> record(NativeStream stream) override;
    bool is_capturing(NativeStream stream) const override;

private:
    ClQueue queue_of(NativeStream stream) const;

    const std::shared_ptr<OpenclContext> context_;
    OpenclQueue demand_;
    OpenclQueue bulk_;
};

// OpenCL does not say what other programs have allocated.
std::uint64_t OpenclDevice::free_memory() const {
    context_->require_working();
    const std::uint64_t allocated = context_->allocated;
    return context_->total_memory() - std::min(allocated, context_->total_memory());
}

void OpenclDevice::copy_to_host(std::span<std::byte> to, const DeviceMemory& from, std::uint64_t offset) {
    check_read(from, {offset, to.size()});
    context_->require_working();
    const ClMemory memory = opencl_memory(*context_, from);
    if (to.empty()) return;
    context_->check(context_->api().clEnqueueReadBuffer(context_->side_queue(), memory, 1, offset, to.size(), to.data(),
                                                        0, nullptr, nullptr),
                    "clEnqueueReadBuffer");
}

/// Returns the queue of a stream. Throws invalid_argument if it is not a queue of this context.
ClQueue OpenclDevice::queue_of(NativeStream stream) const {
    context_->require_working();
    const auto queue = static_cast<ClQueue>(stream.handle);
    ClContext context = nullptr;
    const ClResult result = queue == nullptr ? ClResult::invalid_command_queue
                                             : context_->api().clGetCommandQueueInfo(queue, ClQueueInfo::context,
                                                                                     sizeof context, &context, nullptr);
    if (result == ClResult::invalid_command_queue)
        throw Error(Errc::invalid_argument, "a stream that is not a queue of OpenCL");
    context_->check(result, "clGetCommandQueueInfo");
    if (context != context_->context())
        throw Error(Errc::invalid_argument,
                    "a queue of another context than that of the device " + safemap::quoted(name()))
            .with_hint("Open the device with Device::from_opencl(context, device).");
    return queue;
}

void OpenclDevice::make_wait(NativeStream stream, const DeviceEvent& event) {
    if (stream.kind != NativeStream::Kind::opencl) return Device::make_wait(stream, event);
    wait_in_opencl(*context_, queue_of(stream), event);
}

std::shared_ptr<DeviceEvent> OpenclDevice::record(NativeStream stream) {
    if (stream.kind != NativeStream::Kind::opencl) return Device::record(stream);
    return record_opencl(context_, queue_of(stream));
}

bool OpenclDevice::is_capturing(NativeStream stream) const {
    if (stream.kind != NativeStream::Kind::opencl) return Device::is_capturing(stream);
    queue_of(stream);
    return false;
}

Error broken(const std::string& why) { return {Errc::no_such_device, "OpenCL does not work: " + why}; }

Error failed(const std::string& call, ClResult result) {
    const std::string why = call + ": " + text(result);
    if (result != ClResult::out_of_host_memory) return broken(why);
    return {Errc::out_of_memory, "the host has no memory to start OpenCL: " + why};
}

std::vector<ClPlatform> platforms_of(const OpenclApi& api) {
    std::uint32_t count = 0;
    ClResult result = api.clGetPlatformIDs(0, nullptr, &count);
    if (result == ClResult::platform_not_found || (result == ClResult::success && count == 0)) return {};
    std::vector<ClPlatform> platforms(count);
    if (result == ClResult::success) result = api.clGetPlatformIDs(count, platforms.data(), nullptr);
    if (result != ClResult::success) throw failed("clGetPlatformIDs", result);
    return platforms;
}

/// Returns the devices of all platforms. A platform that does not work has none. Throws no_such_device if there is no
/// device, and out_of_memory if that is the reason.
std::vector<ClDevice> all_devices(const OpenclDriver& driver) {
    if (!driver.library) throw broken(driver.library.fault);
    std::vector<ClDevice> all;
    Error fault = broken("no implementation is installed");
    for (ClPlatform const platform : platforms_of(driver.api)) {
        std::uint32_t count = 0;
        ClResult result = driver.api.clGetDeviceIDs(platform, cl_device_type_all, 0, nullptr, &count);
        std::vector<ClDevice> devices(result == ClResult::success ? count : 0);
        if (!devices.empty())
            result = driver.api.clGetDeviceIDs(platform, cl_device_type_all, count, devices.data(), nullptr);
        if (result == ClResult::success) all.insert(all.end(), devices.begin(), devices.end());
        else fault = failed("clGetDeviceIDs", result);
    }
    if (all.empty()) throw fault;
    return all;
}

std::string text_of(const OpenclApi& api, ClDevice device, ClDeviceInfo info) {
    std::size_t size = 0;
    if (api.clGetDeviceInfo(device, info, 0, nullptr, &size) != ClResult::success) return {};
    std::string text(size, '\0');
    if (api.clGetDeviceInfo(device, info, size, text.data(), nullptr) != ClResult::success) return {};
    return text.substr(0, text.find('\0'));
}

/// Throws no_such_device if a device lacks functions that are called: those of OpenCL 1.2.
void require_version(const OpenclApi& api, ClDevice device) {
    const std::string version = text_of(api, device, ClDeviceInfo::version);
    const std::string_view start = "OpenCL ";
    const bool old = version.starts_with(start) && std::string_view(version).substr(start.size(), 3) < "1.2";
    if (version.starts_with(start) && !old) return;
    throw Error(Errc::no_such_device, "the device is of " + safemap::quoted(version) + ", and OpenCL 1.2 is needed");
}

std::string name_of(std::size_t ordinal) { return "opencl:" + std::to_string(ordinal); }

std::shared_ptr<Device> in_context(const OpenclDriver& driver, ClContext context, ClDevice device, std::string name) {
    return std::make_shared<OpenclDevice>(
        std::make_shared<OpenclContext>(driver.api, context, device, std::move(name)));
}

}  // namespace

std::shared_ptr<Device> open_opencl(const OpenclDriver& driver, std::string_view ordinal) {
    const auto number = parse_ordinal(ordinal);
    if (!number) return nullptr;
    const std::vector<ClDevice> devices = all_devices(driver);
    if (*number >= devices.size()) return nullptr;
    ClDevice const device = devices[*number];
    require_version(driver.api, device);
    ClResult result = ClResult::success;
    ClContext const context = driver.api.clCreateContext(nullptr, 1, &device, nullptr, nullptr, &result);
    if (result != ClResult::success) throw failed("clCreateContext", result);
    // The device retains its context.
    const auto release = [&](ClContext made) { driver.api.clReleaseContext(made); };
    const std::unique_ptr<ClContextObject, decltype(release)> owner(context, release);
    return in_context(driver, context, device, name_of(*number));
}

std::shared_ptr<Device> adopt_opencl(const OpenclDriver& driver, void* context, void* device) {
    const auto ours = static_cast<ClContext>(context);
    const auto wanted = static_cast<ClDevice>(device);
    const std::vector<ClDevice> all = all_devices(driver);
    std::size_t bytes = 0;
    ClResult result = ours == nullptr ? ClResult::invalid_context
                                      : driver.api.clGetContextInfo(ours, ClContextInfo::devices, 0, nullptr, &bytes);
    std::vector<ClDevice> devices(bytes / sizeof(ClDevice));
    if (result == ClResult::success)
        result = driver.api.clGetContextInfo(ours, ClContextInfo::devices, bytes, devices.data(), nullptr);
    if (result != ClResult::success)
        throw Error(Errc::invalid_argument, "a context that is not one of OpenCL: " + text(result));
    if (std::find(devices.begin(), devices.end(), wanted) == devices.end())
        throw Error(Errc::invalid_argument, "a device that the context does not have");
    require_version(driver.api, wanted);
    const auto found = std::find(all.begin(), all.end(), wanted);
    // A part of a device has no number.
    std::string name = found == all.end() ? "opencl" : name_of(static_cast<std::size_t>(found - all.begin()));
    return in_context(driver, ours, wanted, std::move(name));
}

std::string list_opencl(const OpenclDriver& driver) {
    std::string list;
    try {
        const std::vector<ClDevice> devices = all_devices(driver);
        for (std::size_t ordinal = 0; ordinal < devices.size(); ++ordinal)
            list += (list.empty() ? "" : ", ") + name_of(ordinal) + " (" +
                    excerpt(text_of(driver.api, devices[ordinal], ClDeviceInfo::name)) + ")";
    } catch (const Error&) {  // no device
        return {};
    }
    return list;
}

}  // namespace safemap::SAFEMAP_ABI::drivers
