// Main memory as a device: for servers without a GPU, and for tests of all layers above on any machine.
#pragma once

#include <safemap/device.hpp>

#include <memory>
#include <string_view>

namespace safemap::SAFEMAP_ABI::drivers {

/// Returns the device "host". Returns null if there is an `ordinal` ("host:1"): there is only one host.
std::shared_ptr<Device> open_host(std::string_view ordinal);

}  // namespace safemap::SAFEMAP_ABI::drivers
