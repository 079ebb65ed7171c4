// Writes bytes as hexadecimal digits.
#include "base/hex.hpp"

#include <string_view>

namespace safemap::SAFEMAP_ABI {

std::string hex(std::span<const std::byte> bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const std::byte byte : bytes) {
        text += digits[std::to_integer<unsigned>(byte) >> 4];
        text += digits[std::to_integer<unsigned>(byte) & 15];
    }
    return text;
}

}  // namespace safemap::SAFEMAP_ABI
