// Main memory as a device: for servers without a GPU, and so that everything above can be tested anywhere.
#pragma once

#include <safemap/device.hpp>

#include <memory>
#include <string_view>

namespace safemap::SAFEMAP_ABI::device {

/// The host, for "host". Nothing where `ordinal` names another than the one there is ("host:1").
std::shared_ptr<Device> open_host(std::string_view ordinal);

}  // namespace safemap::SAFEMAP_ABI::device
