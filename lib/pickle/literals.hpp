// The texts and numbers of old protocols, which are spelled as Python's literals, and what texts may be in any.
#pragma once

#include <safemap/error.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// The number that a whole text is, of a kind that it fits into; nothing where it is none. `how` is that of from_chars.
template <class Number, class... How> std::optional<Number> number_in(std::string_view text, How... how) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, how...);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Returns true for UTF-8 that may hold lone surrogates, as Python writes them ("surrogatepass").
bool is_python_text(std::string_view text);
/// Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX. Throws pickle_bad_text.
std::string raw_unicode_escape(std::string_view line);
/// The inside of a Python 2 string literal. Throws pickle_bad_text.
std::string string_escape(std::string_view body);

}  // namespace safemap::SAFEMAP_ABI
