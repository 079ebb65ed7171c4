// Bytes as hexadecimal digits.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// Returns two lower-case digits for each byte.
std::string hex(std::span<const std::byte> bytes);

}  // namespace safemap::SAFEMAP_ABI
