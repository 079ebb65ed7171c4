// Prints the completions of a shell or the man page. Meson installs the output.
#include "shell_texts.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

int main(int argc, char** argv) {
    using namespace safemap::cli;
    const std::string_view which = argc == 2 ? argv[1] : "";
    std::string text;
    if (which == "bash") text = bash_completion();
    if (which == "zsh") text = zsh_completion();
    if (which == "fish") text = fish_completion();
    if (which == "man") text = man_page();
    if (text.empty()) {
        std::fputs("Usage: write_texts bash|zsh|fish|man\n", stderr);
        return EXIT_FAILURE;
    }
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? EXIT_SUCCESS
                                                                                                       : EXIT_FAILURE;
}
