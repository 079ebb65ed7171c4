// Reads the texts and numbers of old protocols, which are spelled as Python's literals, and checks texts of any
// protocol.
#pragma once

#include <safemap/error.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Returns the number that the whole text spells. Returns nothing if it spells no number, or one that does not fit.
/// `how` goes to from_chars.
template <class Number, class... How> std::optional<Number> number_in(std::string_view text, How... how) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, how...);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Returns true if the text is UTF-8, in which lone surrogates are allowed as Python writes them ("surrogatepass").
bool is_python_text(std::string_view text);
/// Decodes Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX. Throws pickle_bad_text.
std::string raw_unicode_escape(std::string_view line);
/// Decodes the inside of a Python 2 string literal. Throws pickle_bad_text.
std::string string_escape(std::string_view body);

}  // namespace safemap::SAFEMAP_ABI
