// The texts of old protocols, which are spelled as Python's literals, and what texts may be in any.
#pragma once

#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Returns true for UTF-8 that may hold lone surrogates, as Python writes them ("surrogatepass").
bool is_python_text(std::string_view text);
/// Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX. Throws pickle_bad_text.
std::string raw_unicode_escape(std::string_view line);
/// The inside of a Python 2 string literal. Throws pickle_bad_text.
std::string string_escape(std::string_view body);

}  // namespace safemap::SAFEMAP_ABI
