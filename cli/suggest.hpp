// The meaning of a wrong word on the command line: a command or an option of another program, or a typing error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// Returns the command for a word that other programs use: "inspect" for "ls", "verify" for "check". Empty if no
/// command is meant, or if this build does not have it.
std::string_view command_meant(std::string_view word);
/// Returns what to type for an option that other programs have: "--dtype bf16" for "--bf16", "-o OUT" for "--output".
/// Empty if it is not known. The command need not have the option.
std::string_view option_meant(std::string_view option);

/// Returns the candidate that is closest to `word`: at most a third of its letters are different, missing, extra or
/// swapped. Empty if no candidate is that close.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace safemap::cli
