// UTF-8, and names made fit for messages.
#include "base/text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace safemap::SAFEMAP_ABI {
namespace {

// Length of the UTF-8 sequence that begins at text[0], or 0 where none does (RFC 3629, table of section 4).
std::size_t sequence_length(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const auto continues = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
        return i < text.size() && byte(i) >= low && byte(i) <= high;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    if (first < 0xE0) return continues(1) ? 2 : 0;
    if (first < 0xF0) {
        const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
        const unsigned high = first == 0xED ? 0x9F : 0xBF;
        return continues(1, low, high) && continues(2) ? 3 : 0;
    }
    if (first > 0xF4) return 0;
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
}

// How many bytes at the front are ASCII, counted in words: names mostly are.
std::size_t ascii_words(std::string_view text) noexcept {
    std::size_t at = 0;
    for (std::uint64_t word; text.size() - at >= sizeof(word); at += sizeof(word)) {
        std::memcpy(&word, text.data() + at, sizeof(word));
        if ((word & 0x8080'8080'8080'8080U) != 0) break;
    }
    return at;
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        text.remove_prefix(ascii_words(text));
        if (text.empty()) break;
        const std::size_t length = sequence_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

void append_utf8(std::string& out, std::uint32_t code) {
    const auto byte = [&out](std::uint32_t value) { out += static_cast<char>(static_cast<unsigned char>(value)); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) {
        byte(0xC0 | code >> 6);
    } else if (code < 0x10000) {
        byte(0xE0 | code >> 12);
        byte(0x80 | (code >> 6 & 0x3F));
    } else {
        byte(0xF0 | code >> 18);
        byte(0x80 | (code >> 12 & 0x3F));
        byte(0x80 | (code >> 6 & 0x3F));
    }
    byte(0x80 | (code & 0x3F));
}

std::string printable(std::string_view text, std::size_t limit) {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        if (out.size() >= limit) return out + "…";
        const std::size_t length = sequence_length(text);
        const auto first = static_cast<unsigned char>(text[0]);
        if (length == 0 || first < 0x20 || first == 0x7F) {
            out += "\\x";
            out += digits[first >> 4];
            out += digits[first & 15];
            text.remove_prefix(1);
            continue;
        }
        out += text.substr(0, length);
        text.remove_prefix(length);
    }
    return out;
}

std::string quoted(std::string_view text) { return "'" + printable(text) + "'"; }

bool stays_below(std::string_view path) noexcept {
    if (path.starts_with('/')) return false;
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        if (path.substr(begin, end - begin) == "..") return false;
        begin = end + 1;
    }
    return true;
}

std::string bytes_text(std::uint64_t count) { return std::to_string(count) + (count == 1 ? " byte" : " bytes"); }

}  // namespace safemap::SAFEMAP_ABI
