// Writes completions for bash, zsh and fish, and the man page, each with its own escapes.
#include "shell_texts.hpp"

#include "commands.hpp"

#include <safemap/api.hpp>

#include <fmt/core.h>

#include <map>
#include <string_view>
#include <vector>

namespace safemap::cli {
namespace {

constexpr std::string_view origin = "# Generated from the program's table of options.\n";

/// Returns `text` with `before` inserted before every character that is in `what`.
std::string escaped(std::string_view text, std::string_view what, std::string_view before) {
    std::string result;
    for (const char c : text) {
        if (what.find(c) != what.npos) result += before;
        result += c;
    }
    return result;
}

std::string replaced(std::string_view text, char what, std::string_view with) {
    std::string result;
    for (const char c : text) c == what ? result += with : result += c;
    return result;
}

/// Returns `text` escaped for the single quotes of bash and zsh.
std::string quoted_once(std::string_view text) { return replaced(text, '\'', R"('\'')"); }

std::string joined(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
    return text;
}

/// Returns the forms of an option: "-q" and "--quiet".
std::vector<std::string> forms_of(const OptionHelp& option) {
    return option.short_name.empty() ? std::vector{option.name} : std::vector{option.short_name, option.name};
}

std::string command_names() {
    std::vector<std::string> names;
    for (const CommandRow& row : commands()) names.emplace_back(row.name);
    names.emplace_back("help");
    return joined(names);
}

/// Returns `text` escaped for roff, where a backslash begins an escape, a hyphen is a dash, a quote becomes curved, and
/// a dot at the beginning of a line begins a command.
std::string roff(std::string_view text) {
    const std::string plain = replaced(replaced(replaced(text, '\\', R"(\e)"), '-', R"(\-)"), '\'', R"(\(aq)");
    return plain.starts_with('.') ? R"(\&)" + plain : plain;
}

std::string roff_options(const std::vector<OptionHelp>& options) {
    std::string text;
    std::string_view group;
    for (const OptionHelp& option : options) {
        if (option.group != group) text += fmt::format(".PP\n{}:\n", roff(option.group));
        group = option.group;
        text += ".TP\n";
        if (!option.short_name.empty()) text += fmt::format("\\fB{}\\fR, ", roff(option.short_name));
        text += fmt::format("\\fB{}\\fR", roff(option.name));
        if (!option.value.empty()) text += fmt::format(" \\fI{}\\fR", roff(option.value));
        text += '\n' + roff(option.text) + '\n';
    }
    return text;
}

}  // namespace

std::string bash_completion() {
    std::string text = "# Completion of safemap for bash.\n" + std::string(origin) + R"(_safemap() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words= values=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W ')" +
                       command_names() +
                       R"( --help --version' -- "$cur"))
        return
    fi
    case $prev in
)";
    std::map<std::string, std::string> choices;
    for (const CommandRow& row : commands())
        for (const OptionHelp& option : describe(row).options)
            if (!option.words.empty()) choices.emplace(option.name, joined(option.words));
    for (const auto& [option, words] : choices)
        text += fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n", option, words);
    text += "    esac\n    case $command in\n";
    for (const CommandRow& row : commands()) {
        std::vector<std::string> names;
        const CommandHelp help = describe(row);
        for (const OptionHelp& option : help.options)
            for (std::string& form : forms_of(option)) names.push_back(std::move(form));
        text += fmt::format("        {}) words='{}' values='{}' ;;\n", row.name, joined(names),
                            joined(help.arguments.front().words));
    }
    return text + "        help) COMPREPLY=($(compgen -W '" + command_names() + R"(' -- "$cur")); return ;;
    esac
    case $cur in
        -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
        *) COMPREPLY=($(compgen -W "$values" -- "$cur")) ;;
    esac
}
complete -o bashdefault -o default -F _safemap safemap
)";
}

std::string zsh_completion() {
    std::string text = "#compdef safemap\n# Completion of safemap for zsh.\n" + std::string(origin);
    text +=
        "_safemap() {\n    local context state state_descr line\n    typeset -A opt_args\n    local -a names\n    "
        "names=(\n";
    for (const CommandRow& row : commands())
        text += fmt::format("        '{}:{}'\n", row.name, quoted_once(escaped(row.purpose, ":", "\\")));
    text += R"(        'help:Shows the help of a command.'
    )
    if (( CURRENT == 2 )); then
        _describe command names
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
)";
    for (const CommandRow& row : commands()) {
        text += fmt::format("        {})\n            _arguments \\\n", row.name);
        const CommandHelp help = describe(row);
        const std::string values = joined(help.arguments.front().words);
        for (const OptionHelp& option : help.options) {
            const std::string said = quoted_once(escaped(option.text, "[]:\\", "\\"));
            std::string value;
            if (!option.words.empty()) value = fmt::format(":{}:({})", option.value, joined(option.words));
            else if (!option.value.empty())
                value = fmt::format(":{}:{}", option.value, option.value == "FILE" ? "_files" : "");
            for (const std::string& form : forms_of(option))
                text += fmt::format("                '*{}[{}]{}' \\\n", form, said, value);
        }
        text += fmt::format("                '*:{}'\n            ;;\n",
                            values.empty() ? "file:_files" : "word:(" + values + ')');
    }
    return text + R"(        help) _describe command names ;;
    esac
}
# The completion system calls the file's text as a function. A text that is sourced names its function instead.
if [[ ${funcstack[1]} == _safemap ]]; then
    _safemap "$@"
else
    compdef _safemap safemap
fi
)";
}

std::string fish_completion() {
    const auto quoted = [](std::string_view text) { return "'" + escaped(text, "\\'", "\\") + "'"; };
    std::string text = "# Completion of safemap for fish.\n" + std::string(origin);
    text +=
        "complete -c safemap -n __fish_use_subcommand -f -l help -d 'show the commands'\n"
        "complete -c safemap -n __fish_use_subcommand -f -s V -l version -d 'show the version'\n"
        "complete -c safemap -n __fish_use_subcommand -f -a help -d 'Shows the help of a command.'\n";
    for (const CommandRow& row : commands())
        text +=
            fmt::format("complete -c safemap -n __fish_use_subcommand -f -a {} -d {}\n", row.name, quoted(row.purpose));
    text += "complete -c safemap -n '__fish_seen_subcommand_from help' -f -a '" + command_names() + "'\n";
    for (const CommandRow& row : commands()) {
        const CommandHelp help = describe(row);
        if (const auto& values = help.arguments.front().words; !values.empty())
            text += fmt::format("complete -c safemap -n '__fish_seen_subcommand_from {}' -f -a '{}'\n", row.name,
                                joined(values));
        for (const OptionHelp& option : help.options) {
            text += fmt::format("complete -c safemap -n '__fish_seen_subcommand_from {}'", row.name);
            for (const std::string& form : forms_of(option))
                text += form.size() == 2 ? " -s " + form.substr(1) : " -l " + form.substr(2);
            text += " -d " + quoted(option.text);
            if (!option.words.empty()) text += " -x -a " + quoted(joined(option.words));
            else if (!option.value.empty()) text += " -r";
            text += '\n';
        }
    }
    return text;
}

std::string man_page() {
    std::string text =
        ".\\\" Generated from the program's table of options.\n.TH SAFEMAP 1 \"\" \"safemap " SAFEMAP_VERSION
        "\" \"User Commands\"\n"
        ".SH NAME\nsafemap \\- inspects, converts, verifies and loads checkpoints of neural networks\n"
        ".SH SYNOPSIS\n";
    for (const CommandRow& row : commands())
        text += fmt::format(".B safemap {}\n.I {}\n[options]\n.br\n", row.name, roff(row.arguments));
    text += R"(.B safemap help
[command]
.br
.B safemap \-V
.SH DESCRIPTION
A PATH is a file, a folder, or an index. Formats are recognised by content. Results go to the standard output,
everything else to the standard error.
.SH COMMANDS
)";
    for (const CommandRow& row : commands()) {
        const CommandHelp help = describe(row);
        text += fmt::format(".SS {} {}\n{}\n.PP\nExamples:\n.PP\n.nf\n{}\n{}.fi\n", row.name, roff(row.arguments),
                            roff(row.purpose), roff(row.call), roff(row.examples));
        text += roff_options(help.arguments) + roff_options(help.options);
    }
    return text + R"(.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
The data is damaged, incomplete or of no known format, or two checkpoints differ.
.TP
.B 2
The command line is wrong.
.TP
.B 3
The system failed: no space, no permission, or an I/O error.
.TP
.B 130
Cancelled by a signal.
.SH ENVIRONMENT
.TP
.B NO_COLOR
If set, the output has no colours.
.TP
.B COLUMNS
Overrides the width of the terminal.
)";
}

}  // namespace safemap::cli
