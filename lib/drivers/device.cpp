// The table of backends, and the lookup of a device by its name.

#include "base/text.hpp"
#include "drivers/cuda_device.hpp"
#include "drivers/host_device.hpp"
#include "drivers/opencl_device.hpp"

#include <safemap/advanced/device_backend.hpp>
#include <safemap/error.hpp>

#include <string>

namespace safemap::SAFEMAP_ABI {
namespace {

/// A kind of device.
struct Backend {
    std::string_view name;
    /// Opens the device "name" or "name:ordinal". Returns null if there is no such device. Throws no_such_device if
    /// there is more to say about it.
    std::shared_ptr<Device> (*open)(std::string_view ordinal);
    /// Returns the devices of this kind that exist, for messages.
    std::string (*list)();
};

constexpr Backend backends[] = {
    {"host", drivers::open_host, [] { return std::string("host"); }},
    {"cuda", drivers::open_cuda, drivers::list_cuda},
    {"opencl", [](std::string_view ordinal) { return drivers::open_opencl(drivers::opencl_driver(), ordinal); },
     [] { return drivers::list_opencl(drivers::opencl_driver()); }},
};

std::string what_there_is() {
    std::string all;
    for (const Backend& backend : backends) {
        const std::string devices = backend.list();
        if (devices.empty()) continue;
        if (!all.empty()) all += ", ";
        all += devices;
    }
    return all;
}

[[noreturn]] void throw_no_such_device(std::string_view name, const std::string& why = {},
                                       const std::string& hint = {}) {
    throw Error(Errc::no_such_device, "no device " + safemap::quoted(name) + (why.empty() ? "" : ": " + why) +
                                          "; available: " + what_there_is())
        .with_hint(hint);
}

[[noreturn]] void refuse(NativeStream stream, const std::string& device) {
    const char* const kind = stream.kind == NativeStream::Kind::cuda     ? "a CUDA stream"
                             : stream.kind == NativeStream::Kind::opencl ? "an OpenCL queue"
                                                                         : "no stream";
    throw Error(Errc::invalid_argument, std::string(kind) + " was given to the device " + safemap::quoted(device));
}

}  // namespace

std::shared_ptr<Device> Device::open(std::string_view name) {
    const std::size_t colon = name.find(':');
    const std::string_view kind = name.substr(0, colon);
    const bool has_ordinal = colon != std::string_view::npos && colon + 1 < name.size();
    const std::string_view ordinal = has_ordinal ? name.substr(colon + 1) : std::string_view{};
    const bool well_formed = has_ordinal || colon == std::string_view::npos;

    for (const Backend& backend : backends) {
        if (!well_formed || backend.name != kind) continue;
        try {
            if (auto opened = backend.open(ordinal)) return opened;
        } catch (const Error& error) {
            if (error.code() != Errc::no_such_device) throw;
            throw_no_such_device(name, error.message(), error.hint());
        }
    }
    throw_no_such_device(name);
}

std::shared_ptr<Device> Device::open(const char* name) { return open(not_null(name, "name of a device")); }

std::shared_ptr<Device> Device::from_opencl(void* context, void* device) {
    return drivers::adopt_opencl(drivers::opencl_driver(), context, device);
}

std::span<std::byte> DeviceQueue::map(DeviceMemory&) {
    throw Error(Errc::invalid_argument, "memory of this device cannot be mapped");
}

void DeviceQueue::unmap(DeviceMemory&, std::span<std::byte>) {
    throw Error(Errc::invalid_argument, "memory of this device cannot be mapped");
}

void DeviceQueue::run(const std::function<void(NativeStream)>& work) {
    record()->wait();
    work({});
}

void DeviceMemory::decommit() { throw Error(Errc::invalid_argument, "the memory has no reserved addresses"); }
void DeviceMemory::commit() { throw Error(Errc::invalid_argument, "the memory has no reserved addresses"); }

std::shared_ptr<DeviceMemory> Device::reserve(std::uint64_t) {
    throw Error(Errc::invalid_argument,
                "the device " + safemap::quoted(name()) + " cannot keep addresses: it has no addresses without memory");
}
std::shared_ptr<DeviceMemory> Device::borrow(void*, std::uint64_t) {
    throw Error(Errc::invalid_argument, "the device " + safemap::quoted(name()) + " takes no memory of callers");
}
void Device::make_wait(NativeStream stream, const DeviceEvent&) { refuse(stream, name()); }
std::shared_ptr<DeviceEvent> Device::record(NativeStream stream) { refuse(stream, name()); }
bool Device::is_capturing(NativeStream stream) const { refuse(stream, name()); }

}  // namespace safemap::SAFEMAP_ABI
