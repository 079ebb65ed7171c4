// Base64 of RFC 4648: the alphabet with '+' and '/', padded with '='.
#pragma once

#include <safemap/api.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

std::string to_base64(std::string_view bytes);
/// Decodes text that to_base64() returns. Returns nothing for any other text.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace safemap::SAFEMAP_ABI
