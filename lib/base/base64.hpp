// Bytes as text, RFC 4648: the alphabet with '+' and '/', and '=' at the end.
#pragma once

#include <safemap/api.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

std::string to_base64(std::string_view bytes);
/// Nothing for what to_base64() does not give.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace safemap::SAFEMAP_ABI
