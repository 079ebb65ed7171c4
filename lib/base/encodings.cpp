// Turns bytes into hexadecimal digits and base64, and base64 into bytes.
#include "base/encodings.hpp"

#include <cstdint>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    for (; !bytes.empty(); bytes.remove_prefix(bytes.size() < 3 ? bytes.size() : 3)) {
        std::uint32_t three = 0;
        for (std::size_t i = 0; i < 3; ++i)
            three = three << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U);
        for (std::size_t i = 0; i < 4; ++i) text += i <= bytes.size() ? alphabet[three >> (18 - 6 * i) & 63] : '=';
    }
    return text;
}

std::optional<std::string> from_base64(std::string_view text) {
    std::string bytes;
    if (text.size() % 4 != 0) return std::nullopt;
    bytes.reserve(text.size() / 4 * 3);
    for (std::string_view left = text; !left.empty(); left.remove_prefix(4)) {
        std::size_t digits = 4;
        while (left.size() == 4 && digits > 2 && left[digits - 1] == '=') --digits;
        std::uint32_t three = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            const std::size_t value = i < digits ? alphabet.find(left[i]) : 0;
            if (value == alphabet.npos) return std::nullopt;
            three = three << 6 | static_cast<std::uint32_t>(value);
        }
        for (std::size_t i = 0; i + 1 < digits; ++i) bytes += static_cast<char>(three >> (16 - 8 * i) & 0xff);
    }
    // Several texts can decode to the same bytes; accept only the one that to_base64() returns.
    if (to_base64(bytes) != text) return std::nullopt;
    return bytes;
}

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
