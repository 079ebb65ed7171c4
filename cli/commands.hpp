// The table of commands. The help, the completions and the man page are generated from it.
#pragma once

#include "command.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// A row of the table of commands.
struct CommandRow {
    std::string_view name;
    std::string_view arguments;
    std::string_view purpose;
    std::string_view call;      // the most common call, shown first in the help
    std::string_view examples;  // more calls, each with a newline at its end
    std::unique_ptr<Command> (*make)();
};

/// Returns all commands, in the order of the help.
std::span<const CommandRow> commands();
/// Returns a command, or null if no command has that name.
const CommandRow* find_command(std::string_view name);

/// Returns the parser of a command. It keeps references into `command`.
std::unique_ptr<CLI::App> parser_of(const CommandRow& row, Command& command);

/// An option or an argument, as the help shows it.
struct OptionHelp {
    std::string name;                ///< "--dtype", "IN...", or "-o" of an option without a long name
    std::string short_name;          ///< "-h", or empty
    std::string group;               ///< the title above it; empty for an argument
    std::string value;               ///< "D"; empty for a flag
    std::string text;                ///< description
    std::vector<std::string> words;  ///< accepted values, if only a few are possible
};

/// The arguments and options of a command, as the help shows them.
struct CommandHelp {
    std::vector<OptionHelp> arguments;
    std::vector<OptionHelp> options;
};
CommandHelp describe(const CommandRow& row);

/// Return the help of the program and of a command, in lines of at most `columns` columns.
std::string usage(std::size_t columns);
std::string help_text(const CommandRow& row, std::size_t columns);

}  // namespace safemap::cli
