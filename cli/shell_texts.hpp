// Completions for shells and the man page, made from the table of commands.
#pragma once

#include <string>

namespace safemap::cli {

std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();
/// safemap(1), in roff.
std::string man_page();

}  // namespace safemap::cli
