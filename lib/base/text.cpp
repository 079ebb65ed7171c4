// Decodes and encodes UTF-8, and makes names safe for messages.
#include "base/text.hpp"

#include <safemap/advanced/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

// Returns the length of the UTF-8 sequence at text[0]; 0 if it is invalid (RFC 3629, table of section 4).
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

// Returns the number of ASCII bytes at the front, in whole words of eight: names are mostly ASCII.
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

std::optional<std::uint32_t> take_character(std::string_view& text) noexcept {
    const std::size_t length = sequence_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    if (length == 0) return std::nullopt;
    std::uint32_t code = static_cast<unsigned char>(character[0]) & (length == 1 ? 0x7FU : 0x7FU >> length);
    for (const char c : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3FU);
    return code;
}

bool is_control(std::uint32_t character) noexcept {
    constexpr std::pair<std::uint32_t, std::uint32_t> controls[] = {
        {0, 0x1F},         // C0
        {0x7F, 0x9F},      // DEL and C1, which some terminals obey too
        {0x61C, 0x61C},    // direction mark
        {0x200B, 0x200F},  // zero width; direction marks
        {0x2028, 0x202E},  // line ends; direction changes
        {0x2066, 0x2069},  // direction changes
        {0xFEFF, 0xFEFF},  // zero width
    };
    return std::any_of(std::begin(controls), std::end(controls),
                       [&](const auto& range) { return character >= range.first && character <= range.second; });
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
        const std::string_view before = text;
        const auto code = take_character(text);
        const std::string_view character = before.substr(0, before.size() - text.size());
        if (code && !is_control(*code)) {
            out += character;
            continue;
        }
        for (const char c : character) {
            const auto byte = static_cast<unsigned char>(c);
            out += "\\x";
            out += digits[byte >> 4];
            out += digits[byte & 15];
        }
    }
    return out;
}

std::string excerpt(std::string_view text) { return printable(text, 200); }

std::string shell_word(std::string_view text) {
    const auto is_plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("%+,-./:=@_").find(c) != std::string_view::npos;
    };
    if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
    const bool shown_as_it_is = printable(text) == text;
    std::string word = shown_as_it_is ? "'" : "$'";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (shown_as_it_is && c == '\'') word += R"('\'')";
        else if (shown_as_it_is || is_plain(c) || c == ' ') word += c;
        else
            for (const unsigned shift : {9U, 6U, 3U, 0U})
                word += shift == 9 ? '\\' : static_cast<char>('0' + (byte >> shift & 7U));
    }
    return word + '\'';
}

std::string quoted(std::string_view text) { return "'" + excerpt(text) + "'"; }

std::string names_text(std::span<const std::string> names, std::size_t most) {
    std::string text;
    for (const std::string& name : names.first(std::min(names.size(), most)))
        text += (text.empty() ? "" : ", ") + excerpt(name);
    if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
    return text;
}

bool stays_below(std::string_view path) noexcept {
    if (path.starts_with('/')) return false;
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        if (path.substr(begin, end - begin) == "..") return false;
        begin = end + 1;
    }
    return true;
}

std::string counted(std::uint64_t count, std::string_view one, std::string_view many) {
    std::string text = std::to_string(count) + ' ';
    if (count == 1 || many.empty()) text += one;
    else return text += many;
    return count == 1 ? text : text += 's';
}

}  // namespace safemap::SAFEMAP_ABI
