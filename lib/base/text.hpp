// Small things about text that several layers need.
#pragma once

#include <safemap/error.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Whether `text` is UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view text) noexcept;
/// Takes the character at the front off `text`, which is not empty; nothing where the byte there, which is taken,
/// begins no UTF-8.
std::optional<std::uint32_t> take_character(std::string_view& text) noexcept;
/// Whether a character is a control, cannot be seen, or turns the direction of the text behind it.
bool is_control(std::uint32_t character) noexcept;
/// Adds the UTF-8 of a character up to U+10FFFF; a surrogate becomes three bytes, which is no UTF-8.
void append_utf8(std::string& out, std::uint32_t code);
/// Names in messages: printable, at most 200 bytes and then "…".
std::string excerpt(std::string_view text);
/// "'name'", an excerpt.
std::string quoted(std::string_view text);
/// Whether a path stays below the folder it begins in, symbolic links aside: relative, and without "..".
bool stays_below(std::string_view path) noexcept;
/// "1234 bytes", "1 byte".
std::string bytes_text(std::uint64_t count);

}  // namespace safemap::SAFEMAP_ABI
