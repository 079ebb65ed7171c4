// GPUs of NVIDIA as devices, through the driver that is installed on the machine.
#pragma once

#include <safemap/device.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::drivers {

/// Returns the device "cuda:ordinal", or "cuda:0" if the ordinal is empty. Returns null if the machine has no such
/// device. Throws no_such_device with the reason if the driver does not work.
std::shared_ptr<Device> open_cuda(std::string_view ordinal);

/// Returns "cuda:0 (NAME), cuda:1 (NAME)": the devices of this machine. Returns an empty string if it has none, or no
/// driver that works.
std::string list_cuda();

}  // namespace safemap::SAFEMAP_ABI::drivers
