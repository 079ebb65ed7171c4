// Reads Python's literals. The references are Objects/unicodeobject.c and Objects/bytesobject.c of CPython. Tested by
// tests/pickle/pickle_test.cpp.
#include "pickle/literals.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <cstdint>

namespace safemap::SAFEMAP_ABI {

namespace {

Error bad_text(std::string what) { return {Errc::pickle_bad_text, std::move(what)}; }

/// Returns the value of the octal escape at `at`; moves `at` to its last digit.
char octal_escape(std::string_view body, std::size_t& at) {
    unsigned value = 0;
    const std::size_t end = std::min(at + 3, body.size());
    std::size_t i = at;
    for (; i < end && body[i] >= '0' && body[i] <= '7'; ++i) value = value * 8 + static_cast<unsigned>(body[i] - '0');
    at = i - 1;
    return static_cast<char>(static_cast<unsigned char>(value & 0xFF));
}

}  // namespace

bool is_python_text(std::string_view text) {
    if (is_utf8(text)) return true;
    std::string without;
    for (std::size_t i = 0; i < text.size();) {
        const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(at < text.size() ? text[at] : 0); };
        if (byte(i) == 0xED && byte(i + 1) >= 0xA0 && byte(i + 1) <= 0xBF && (byte(i + 2) & 0xC0) == 0x80) {
            without += '?';  // separates the bytes around it, which must not join
            i += 3;
        } else {
            without += text[i++];
        }
    }
    return is_utf8(without);
}

std::string raw_unicode_escape(std::string_view line) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        const char next = i + 1 < line.size() ? line[i + 1] : '\0';
        if (c != '\\' || (next != 'u' && next != 'U')) {
            append_utf8(out, static_cast<unsigned char>(c));
            if (c == '\\' && i + 1 < line.size()) append_utf8(out, static_cast<unsigned char>(line[++i]));
            continue;
        }
        const std::size_t digits = next == 'u' ? 4 : 8;
        const std::string_view hex = line.substr(i + 2, digits);
        const auto code = hex.size() == digits ? number_in<std::uint32_t>(hex, 16) : std::nullopt;
        if (!code || *code > 0x10FFFF) throw bad_text("invalid escape in " + safemap::quoted(line));
        append_utf8(out, *code);
        i += 1 + digits;
    }
    return out;
}

std::string string_escape(std::string_view body) {
    constexpr std::string_view letters = "abtnvfr\\'\"";
    constexpr std::string_view values = "\a\b\t\n\v\f\r\\'\"";
    std::string out;
    for (std::size_t i = 0; i < body.size(); ++i) {
        if (body[i] != '\\') {
            out += body[i];
            continue;
        }
        if (++i == body.size()) throw bad_text("a string ends in a backslash");
        const char c = body[i];
        if (const auto known = letters.find(c); known != letters.npos) {
            out += values[known];
        } else if (c == 'x') {
            const auto hex = body.substr(i + 1, 2);
            const auto code = hex.size() == 2 ? number_in<std::uint32_t>(hex, 16) : std::nullopt;
            if (!code) throw bad_text("invalid escape in " + safemap::quoted(body));
            out += static_cast<char>(static_cast<unsigned char>(*code));
            i += 2;
        } else if (c >= '0' && c <= '7') {
            out += octal_escape(body, i);
        } else {
            out += '\\';
            out += c;
        }
    }
    return out;
}

}  // namespace safemap::SAFEMAP_ABI
