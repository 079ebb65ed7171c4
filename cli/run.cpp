// Parses the words of a call, runs the command, reports errors and returns the exit code.
#include "run.hpp"

#include "commands.hpp"
#include "many_nodes.hpp"
#include "output.hpp"
#include "signals.hpp"
#include "suggest.hpp"
#include "terminal.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/api.hpp>
#include <safemap/error.hpp>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace safemap::cli {
namespace {

using Arguments = std::span<const std::string>;

/// Returns the width of the help: at most 100 columns, and 80 if stdout is not a terminal.
std::size_t help_columns() {
    constexpr std::size_t most = 100;
    const std::size_t columns = columns_of_terminal(STDOUT_FILENO);
    return columns == unlimited_columns ? 80 : std::min(columns, most);
}

constexpr std::string_view command_list = "safemap --help lists the commands";

/// Returns "did you mean --tree?", or `otherwise` if no candidate is close.
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates, std::string otherwise) {
    const std::string meant = nearest(word, candidates);
    return meant.empty() ? std::move(otherwise) : "did you mean " + meant + '?';
}

bool is_option(std::string_view word) { return word.size() > 1 && word.front() == '-' && word != "--"; }

std::vector<std::string> options_of(const CommandRow& row) {
    std::vector<std::string> names;
    for (const OptionHelp& option : describe(row).options) {
        names.push_back(option.name);
        if (!option.short_name.empty()) names.push_back(option.short_name);
    }
    return names;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns "--root, --rename or --resume": the long options that begin with the letter of `word`, if they are few.
std::string options_with_letter(std::string_view word, const std::vector<std::string>& options) {
    constexpr std::size_t most = 5;
    std::vector<std::string> found;
    for (const std::string& option : options)
        if (option.size() > 2 && option[2] == static_cast<char>(word[1] | 0x20)) found.push_back(option);
    if (found.empty() || found.size() > most) return {};
    std::string all = found.front();
    for (std::size_t i = 1; i < found.size(); ++i) all += (i + 1 < found.size() ? ", " : " or ") + found[i];
    return all;
}

/// Returns a hint on an option that `row` does not have: the option that was meant, or the commands that have it.
std::string hint_for_option(const CommandRow& row, const std::string& word, const std::string& otherwise) {
    const std::vector<std::string> options = options_of(row);
    const std::string_view meant = option_meant(word);
    if (contains(options, meant.substr(0, meant.find(' ')))) return fmt::format("did you mean {}?", meant);
    std::string others;
    for (const CommandRow& other : commands())
        if (contains(options_of(other), word)) others += (others.empty() ? "" : ", ") + std::string(other.name);
    if (!others.empty()) return fmt::format("{} is an option of {}", word, others);
    if (word.size() > 2) return suggestion(word, options, otherwise);
    const std::string with_letter = options_with_letter(word, options);
    return with_letter.empty() ? otherwise : fmt::format("did you mean {}?", with_letter);
}

/// Rewrites the messages of CLI11 for a missing or an extra value, which do not name the option as typed.
std::string in_our_words(const CLI::ParseError& wrong) {
    constexpr std::string_view too_many = " was given a disallowed flag override";
    const std::string text = wrong.what();
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&wrong) == nullptr) return text;
    if (text.ends_with(too_many))
        return fmt::format("--{} takes no value", text.substr(0, text.size() - too_many.size()));
    if (text.find(" required but received ") != text.npos)
        return fmt::format("{} is given more than once", text.substr(0, text.find(':')));
    if (text.ends_with(" missing")) return fmt::format("{} needs a value", text.substr(0, text.find(':')));
    return text;
}

/// Returns the error for a call that could not be parsed. An unknown option is reported first, because it may cause
/// the errors in the words after it.
Error wrong_call(const CommandRow& row, const CLI::App& app, const CLI::ParseError& wrong) {
    const std::string all = fmt::format("safemap {} --help lists the options", row.name);
    const std::vector<std::string> left = app.remaining();
    const auto unknown = std::find_if(left.begin(), left.end(), is_option);
    if (unknown != left.end()) {
        const std::string word = unknown->substr(0, unknown->find('='));
        if (word == "-")  // "-q=false" is parsed as "-q" and "-=false"
            throw Error(Errc::invalid_argument,
                        fmt::format("a flag takes no value: '{}'", printable(unknown->substr(1))));
        Error error(Errc::invalid_argument, fmt::format("{} has no option '{}'", row.name, printable(word)));
        return std::move(error.with_hint(hint_for_option(row, word, all)));
    }
    const auto extra = std::find_if(left.begin(), left.end(), [](const std::string& word) { return word != "--"; });
    if (extra != left.end() && dynamic_cast<const CLI::ExtrasError*>(&wrong) != nullptr) {
        Error error(Errc::invalid_argument, fmt::format("'{}' is one argument too many", printable(*extra)));
        return std::move(error.with_hint(fmt::format("safemap {} {} [options]", row.name, row.arguments)));
    }
    Error error(Errc::invalid_argument, in_our_words(wrong));
    return std::move(error.with_hint(all));
}

/// Returns the words in the order that CLI11 takes them in, the last one first. `--root=` becomes `--root` and an empty
/// word: CLI11 would take the next word as the value.
std::vector<std::string> words_for(const CLI::App& app, Arguments words) {
    std::vector<std::string> result;
    bool options = true;
    for (const std::string& word : words) {
        options = options && word != "--";
        const std::string name = word.substr(0, word.find('='));
        const CLI::Option* const option = options && word.starts_with("--") ? app.get_option_no_throw(name) : nullptr;
        const bool empty = option != nullptr && option->get_expected_max() > 0 && word == name + '=';
        result.push_back(empty ? name : word);
        if (empty) result.emplace_back();
    }
    std::reverse(result.begin(), result.end());
    return result;
}

/// Runs a command with the words that follow its name. `typed` is the whole call.
int run_command(const CommandRow& row, Console& console, Arguments words, std::string typed) {
    const std::unique_ptr<Command> command = row.make();
    command->typed = std::move(typed);
    const std::unique_ptr<CLI::App> app = parser_of(row, *command);
    try {
        app->parse(words_for(*app, words));
    } catch (const CLI::CallForHelp&) {
        console.print(help_text(row, help_columns()));
        return 0;
    } catch (const CLI::ParseError& wrong) {
        throw wrong_call(row, *app, wrong);
    }
    console.set_quiet(command->common.quiet);
    return command->run(console);
}

/// Returns the error for a first word that is not a command.
Error no_command(std::string_view word) {
    std::vector<std::string> names = {"help"};
    for (const CommandRow& row : commands()) names.emplace_back(row.name);
    if (word.empty() || word.front() != '-') {
        std::error_code ignored;
        const std::string shown = printable(word);
        std::string otherwise(command_list);
        if (std::filesystem::exists(word, ignored))
            otherwise = fmt::format("safemap inspect {} lists what is in it", shown);
        Error error(Errc::invalid_argument, fmt::format("'{}' is not a command", shown));
        const std::string_view meant = command_meant(word);
        return std::move(error.with_hint(meant.empty() ? suggestion(word, names, std::move(otherwise))
                                                       : fmt::format("did you mean {}?", meant)));
    }
    const std::string option(word.substr(0, word.find('=')));
    const auto has = [&](const CommandRow& row) { return contains(options_of(row), option); };
    if (std::any_of(commands().begin(), commands().end(), has)) {
        Error error(Errc::invalid_argument, fmt::format("expected a command before '{}'", printable(option)));
        return std::move(error.with_hint(command_list));
    }
    Error error(Errc::invalid_argument, fmt::format("unknown option '{}'", printable(option)));
    return std::move(error.with_hint(suggestion(option, {"--help", "--version"}, std::string(command_list))));
}

int run_words(Console& console, Arguments words, const std::string& typed) {
    const auto word = [&](std::size_t at) { return at < words.size() ? std::string_view(words[at]) : ""; };
    const std::string_view first = word(0);
    const std::string_view second = word(1);
    const bool help = first == "help";
    const bool about_help = help && (second.empty() || second == "help" || second == "--help" || second == "-h");
    if (words.empty() || first == "--help" || first == "-h" || about_help) {
        console.print(usage(help_columns()));
        return 0;
    }
    if (first == "--version" || first == "-V") {
        console.print("safemap " SAFEMAP_VERSION "\n");
        return 0;
    }
    const CommandRow* const row = find_command(help ? second : first);
    if (row == nullptr) throw no_command(help ? second : first);
    if (!help) return run_command(*row, console, words.subspan(1), typed);
    console.print(help_text(*row, help_columns()));
    return 0;
}

bool asks_for_json(Arguments words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string_view word = words[i];
        if (word == "--json" || word.starts_with("--json=") || word == "--json-lines") return true;
        if (word == "--format=json") return true;
        if (word == "json" && i > 0 && words[i - 1] == "--format") return true;
    }
    return false;
}

/// Returns what to do about a path that does not exist, but means something in another place; empty for any other path.
std::string hint_of_path(std::string_view path) {
    if (path.empty()) return "the path is empty: a variable of the shell may not be set";
    if (path == "-")
        return "stdin is not supported, because a checkpoint is not read in order: give a file or a folder";
    if (path.starts_with('~')) return "the shell has not replaced the '~': write it without quotes, or use $HOME";
    if (path.find("://") != path.npos) return "safemap reads files of this machine: download it first";
    const bool is_id = path.front() != '.' && path.front() != '/' && std::count(path.begin(), path.end(), '/') == 1 &&
                       path.find_first_of("*?[") == path.npos;
    std::error_code ignored;
    if (!is_id || std::filesystem::exists(std::filesystem::path(path).parent_path(), ignored)) return {};
    return fmt::format("a model of the Hugging Face hub must be downloaded first: hf download {}", shell_word(path));
}

int report_error(Console& console, Error error) {
    if (error.code() == Errc::path_not_found) error.with_hint(hint_of_path(error.path()));
    console.error(error);
    return exit_code(error.code());
}

/// Returns the error that an exception stands for.
Error error_of(const std::exception& exception) {
    if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
    if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr)
        return {Errc::out_of_memory, "an allocation failed"};
    return {Errc::io_error, exception.what()};
}

bool runs_with_others(Arguments words) { return !words.empty() && words.front() == "convert"; }

/// Runs the command. With others, if it is one that several processes run: they all end with the same error.
int run_with_others(Console& console, Arguments words, const std::string& typed) {
    // Before anything is parsed: only one process prints the error.
    if (runs_with_others(words)) console.silence(Nodes::begin());
    try {
        return run_words(console, words, typed);
    } catch (const ReaderGone&) {
        throw;
    } catch (const std::exception& error) {
        Nodes::tell(error_of(error));
        throw;
    }
}

/// Runs the command. Reports every exception and returns its exit code.
int run_and_report(Console& console, Arguments words, const std::string& typed) {
    try {
        return run_with_others(console, words, typed);
    } catch (const ReaderGone&) {
        return exit_code(Errc::io_error);
    } catch (const std::exception& error) {
        return report_error(console, error_of(error));
    }
}

}  // namespace

int run(std::span<const std::string> program, std::span<const std::string> words) {
    // Decided before anything is parsed, so that a parse error is also reported as JSON.
    const bool json = asks_for_json(words);
    Console console(json);
    // MPI takes long to begin. Meanwhile, too, only one process tells of a signal.
    if (runs_with_others(words)) console.silence(Nodes::is_follower());
    const SignalHandlers handlers(json);
    const Nodes nodes;
    try {
        std::vector<std::string> call(program.begin(), program.end());
        call.insert(call.end(), words.begin(), words.end());
        return run_and_report(console, words, shell_line(call));
    } catch (const ReaderGone&) {
        return exit_code(Errc::io_error);
    } catch (const Error& error) {
        // The error itself could not be printed: stdout is full or closed.
        console.complain(error);
        return exit_code(error.code());
    } catch (...) {
        console.complain(Error(Errc::io_error, "the report could not be written to stdout"));
        return exit_code(Errc::io_error);
    }
}

}  // namespace safemap::cli
