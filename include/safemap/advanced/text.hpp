// Text of any origin, as a terminal, a log or JSON may show it.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Returns `text` as a terminal or a log may show it: control characters (C0, DEL, C1), characters that cannot be seen
/// or that turn the direction of the text behind them, and bytes that are not UTF-8 become `\x1b` and the like. A
/// result that would be longer than `limit` bytes ends there, with "…". Linear.
SAFEMAP_API std::string printable(std::string_view text, std::size_t limit = static_cast<std::size_t>(-1));
/// Returns `text` as a string of JSON, in quotes. The characters that printable() escapes are `\u001b` and the like,
/// bytes that are not UTF-8 U+FFFD. Linear.
SAFEMAP_API std::string json_quoted(std::string_view text);

}  // namespace safemap::SAFEMAP_ABI
