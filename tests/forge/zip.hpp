// Deflates bytes for tests in the form that zip stores: raw, without zlib's header and checksum.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace forge {

std::vector<std::byte> deflated(std::span<const std::byte> data);
std::string deflated(const std::string& data);

}  // namespace forge
