// Bytes as text: hexadecimal digits, and base64 of RFC 4648 (the alphabet with '+' and '/', padded with '=').
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

std::string to_base64(std::string_view bytes);
/// Decodes text that to_base64() returns. Returns nothing for any other text.
std::optional<std::string> from_base64(std::string_view text);

/// Returns two lower-case digits for each byte.
std::string hex(std::span<const std::byte> bytes);

}  // namespace safemap::SAFEMAP_ABI
