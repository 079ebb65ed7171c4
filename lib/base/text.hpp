// Text helpers for several layers: UTF-8, quoting, paths.
#pragma once

#include <safemap/error.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Returns true if `text` is UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) noexcept;
/// Removes the first character of `text`, which is not empty, and returns it. If the text does not begin with UTF-8,
/// removes one byte and returns nothing.
std::optional<std::uint32_t> take_character(std::string_view& text) noexcept;
/// Returns true if a character is a control character, is invisible, or changes the direction of the text after it.
bool is_control(std::uint32_t character) noexcept;
/// Appends a character up to U+10FFFF as UTF-8. A surrogate becomes three bytes that are not UTF-8.
void append_utf8(std::string& out, std::uint32_t code);
/// Returns a name for messages: printable, at most 200 bytes, then "…".
std::string excerpt(std::string_view text);
/// Returns "'name'", where the name is an excerpt().
std::string quoted(std::string_view text);
/// Returns `text`. Throws invalid_argument if it is null: "there is no " and `what`.
inline std::string_view not_null(const char* text, const char* what) {
    if (text == nullptr) throw Error(Errc::invalid_argument, std::string("there is no ") + what);
    return text;
}
/// Returns "a, b and 3 more": the first `most` names, each as an excerpt(), and how many more there are.
std::string names_text(std::span<const std::string> names, std::size_t most);
/// Returns true if a path stays in the folder where it begins: relative and without "..". Ignores symbolic links.
bool stays_below(std::string_view path) noexcept;
/// Returns the number that all of a text spells in decimal digits; nothing for any other text, and for a number that
/// `Number` cannot hold.
template <class Number = std::uint64_t> std::optional<Number> decimal(std::string_view text) noexcept {
    Number number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}
/// Returns "1 tensor", "3 tensors": the number and `one`, or `many`. Without `many`, the plural of `one` ends in "s".
std::string counted(std::uint64_t count, std::string_view one, std::string_view many = {});
/// Returns "1234 bytes" or "1 byte".
inline std::string bytes_text(std::uint64_t count) { return counted(count, "byte"); }

}  // namespace safemap::SAFEMAP_ABI
