// Shell completions and the man page, generated from the table of commands.
#pragma once

#include <string>

namespace safemap::cli {

std::string bash_completion();
std::string zsh_completion();
std::string fish_completion();
/// Returns safemap(1), in roff.
std::string man_page();

}  // namespace safemap::cli
