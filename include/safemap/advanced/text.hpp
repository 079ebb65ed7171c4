// Escapes untrusted text for a terminal, a log, JSON or a shell.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// Returns `text` with everything escaped that could mislead a reader or control a terminal: control characters (C0,
/// DEL, C1), invisible characters, characters that change the direction of text, and bytes that are not UTF-8 become
/// escapes such as `\x1b`. A result longer than `limit` bytes is cut at the next character and ends in "…". Linear.
///
/// Example:
///     std::string name = safemap::printable("layer\x1b[2J");  // layer\x1b[2J, harmless
///     std::string json = safemap::json_quoted("layer\x1b");   // "layer\u001b", with the quotes
[[nodiscard]] SAFEMAP_API std::string printable(std::string_view text,
                                                std::size_t limit = static_cast<std::size_t>(-1));
/// Returns `text` as a JSON string, including the quotes. The characters that printable() escapes become escapes such
/// as `\u001b`; bytes that are not UTF-8 become U+FFFD. Linear.
[[nodiscard]] SAFEMAP_API std::string json_quoted(std::string_view text);
/// Returns `text` as one word of a shell (bash, zsh): as it is if no character has a meaning there, else as '...'. Text
/// that printable() changes becomes $'...' with octal escapes, which messages show as they are. Linear.
[[nodiscard]] SAFEMAP_API std::string shell_word(std::string_view text);

}  // namespace safemap::SAFEMAP_ABI
