// The entry point: parses the command line, runs the command, reports errors and returns the exit code.
#include "commands.hpp"
#include "many_nodes.hpp"
#include "output.hpp"
#include "signals.hpp"
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
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

namespace safemap::cli {
namespace {

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

/// Rewrites the messages of CLI11 for a missing or an extra value, which do not name the option as typed.
std::string in_our_words(const CLI::ParseError& wrong) {
    constexpr std::string_view too_many = " was given a disallowed flag override";
    const std::string text = wrong.what();
    if (dynamic_cast<const CLI::ArgumentMismatch*>(&wrong) == nullptr) return text;
    if (text.ends_with(too_many))
        return fmt::format("--{} takes no value", text.substr(0, text.size() - too_many.size()));
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
        std::vector<std::string> options;
        for (const OptionHelp& option : describe(row).options) options.push_back(option.name);
        Error error(Errc::invalid_argument, fmt::format("{} has no option '{}'", row.name, printable(word)));
        return std::move(error.with_hint(suggestion(word, options, all)));
    }
    const auto extra = std::find_if(left.begin(), left.end(), [](const std::string& word) { return word != "--"; });
    if (extra != left.end() && dynamic_cast<const CLI::ExtrasError*>(&wrong) != nullptr) {
        Error error(Errc::invalid_argument, fmt::format("'{}' is one argument too many", printable(*extra)));
        return std::move(error.with_hint(fmt::format("safemap {} {} [options]", row.name, row.arguments)));
    }
    Error error(Errc::invalid_argument, in_our_words(wrong));
    return std::move(error.with_hint(all));
}

/// Runs a command. `argv` are all words of the call: the program, the command, and its own.
int run_command(const CommandRow& row, Console& console, int argc, char** argv) {
    const std::unique_ptr<Command> command = row.make();
    command->typed = shell_line({argv, static_cast<std::size_t>(argc)});
    const std::unique_ptr<CLI::App> app = parser_of(row, *command);
    try {
        app->parse(argc - 1, argv + 1);
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
        return std::move(error.with_hint(suggestion(word, names, std::move(otherwise))));
    }
    const std::string option(word.substr(0, word.find('=')));
    std::vector<std::string> known;
    for (const CommandRow& row : commands())
        for (const OptionHelp& help : describe(row).options) known.push_back(help.name);
    if (std::find(known.begin(), known.end(), option) != known.end() && option != "--help") {
        Error error(Errc::invalid_argument, fmt::format("expected a command before '{}'", printable(option)));
        return std::move(error.with_hint(command_list));
    }
    Error error(Errc::invalid_argument, fmt::format("unknown option '{}'", printable(option)));
    return std::move(error.with_hint(suggestion(option, {"--help", "--version"}, std::string(command_list))));
}

int run(Console& console, int argc, char** argv) {
    const std::string_view first = argc > 1 ? argv[1] : "";
    const std::string_view second = argc > 2 ? argv[2] : "";
    const bool help = first == "help";
    const bool about_help = help && (second.empty() || second == "help" || second == "--help" || second == "-h");
    if (argc < 2 || first == "--help" || first == "-h" || about_help) {
        console.print(usage(help_columns()));
        return 0;
    }
    if (first == "--version" || first == "-V") {
        console.print("safemap " SAFEMAP_VERSION "\n");
        return 0;
    }
    const CommandRow* const row = find_command(help ? second : first);
    if (row == nullptr) throw no_command(help ? second : first);
    if (!help) return run_command(*row, console, argc, argv);
    console.print(help_text(*row, help_columns()));
    return 0;
}

bool asks_for_json(std::string_view word) {
    return word == "--json" || word.starts_with("--json=") || word == "--json-lines";
}

int fail(Console& console, const Error& error) {
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

bool runs_with_others(int argc, char** argv) { return argc > 1 && std::string_view(argv[1]) == "convert"; }

/// Runs the command. With others, if it is one that several processes run: they all end with the same error.
int run_with_others(Console& console, int argc, char** argv) {
    // Before anything is parsed: only one process prints the error.
    if (runs_with_others(argc, argv)) console.silence(Nodes::begin());
    try {
        return run(console, argc, argv);
    } catch (const ReaderGone&) {
        throw;
    } catch (const std::exception& error) {
        Nodes::tell(error_of(error));
        throw;
    }
}

/// Runs the command. Reports every exception and returns its exit code.
int run_and_report(Console& console, int argc, char** argv) {
    try {
        return run_with_others(console, argc, argv);
    } catch (const ReaderGone&) {
        return exit_code(Errc::io_error);
    } catch (const std::exception& error) {
        return fail(console, error_of(error));
    }
}

}  // namespace
}  // namespace safemap::cli

int main(int argc, char** argv) {
    using namespace safemap;
    // Decided before anything is parsed, so that a parse error is also reported as JSON.
    const bool json = std::any_of(argv, argv + argc, cli::asks_for_json);
    cli::Console console(json);
    const cli::Nodes nodes;
    try {
        // MPI takes long to begin. Meanwhile, too, only one process tells of a signal.
        if (cli::runs_with_others(argc, argv)) console.silence(cli::Nodes::is_follower());
        cli::install_signals(json);
        return cli::run_and_report(console, argc, argv);
    } catch (const cli::ReaderGone&) {
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
