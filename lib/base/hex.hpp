// Bytes as digits.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace safemap {

/// Two lower-case digits for each byte.
std::string hex(std::span<const std::byte> bytes);

}  // namespace safemap
