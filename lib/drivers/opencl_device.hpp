// Devices of OpenCL, of all implementations that are installed on the machine.
#pragma once

#include "drivers/opencl_api.hpp"

#include <safemap/device.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::drivers {

/// Returns the device "opencl:ordinal", or "opencl:0" if the ordinal is empty. Ordinals count the devices of all
/// platforms. Returns null if `ordinal` is not a number, or there are fewer devices. Throws no_such_device with the
/// reason if OpenCL is absent, does not work or is too old.
std::shared_ptr<Device> open_opencl(const OpenclDriver& driver, std::string_view ordinal);

/// As Device::from_opencl().
std::shared_ptr<Device> adopt_opencl(const OpenclDriver& driver, void* context, void* device);

/// Returns "opencl:0 (NAME), opencl:1 (NAME)": the devices of this machine. Returns an empty string if there are no
/// devices, or OpenCL does not work.
std::string list_opencl(const OpenclDriver& driver);

}  // namespace safemap::SAFEMAP_ABI::drivers
