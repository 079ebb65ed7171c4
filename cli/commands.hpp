// The table of commands, and what there is to know of each: help, completions and the man page are made from it.
#pragma once

#include "command.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

struct CommandRow {
    std::string_view name;
    std::string_view arguments;
    std::string_view purpose;
    std::string_view call;     // the call that a user wants
    std::string_view example;  // after a file w.safetensors has been made
    std::unique_ptr<Command> (*make)();
};

std::span<const CommandRow> commands();
/// Null where there is no such command.
const CommandRow* find_command(std::string_view name);

/// The parser of a command, which keeps references into `command`.
std::unique_ptr<CLI::App> parser_of(const CommandRow& row, Command& command);

/// An option or an argument, as it is shown.
struct OptionHelp {
    std::string name;                ///< "--dtype", "IN..."
    std::string short_name;          ///< "-h", or empty
    std::string value;               ///< "D"; empty for a flag
    std::string text;                ///< what it is for
    std::vector<std::string> words;  ///< its values, where there is only a choice of some
};

struct CommandHelp {
    std::vector<OptionHelp> arguments;
    std::vector<OptionHelp> options;
};
CommandHelp describe(const CommandRow& row);

/// The help of the program, and of a command, in lines of at most `columns` columns.
std::string usage(std::size_t columns);
std::string help_text(const CommandRow& row, std::size_t columns);

/// The candidate that `word` was meant to be: at most a third of its letters are other, missing, too many or swapped.
/// Empty where there is none.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace safemap::cli
