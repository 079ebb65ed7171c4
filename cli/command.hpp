// A command: the options it declares and the work it does. One file for each.
#pragma once

#include "options.hpp"
#include "output.hpp"

#include <memory>
#include <string>

namespace safemap::cli {

/// One command of the program: its options and its work.
class Command {
public:
    virtual ~Command() = default;
    /// Declares the arguments and options of the command, except the common ones. Parsing stores their values in it.
    virtual void declare(CLI::App& app) = 0;
    /// Runs the command and returns the exit code. Throws Error on failure.
    virtual int run(Console& console) = 0;

    CommonOptions common;
    std::string typed = {};  ///< the whole call, for messages: a shell runs it again
};

std::unique_ptr<Command> make_inspect();
std::unique_ptr<Command> make_convert();
std::unique_ptr<Command> make_verify();
std::unique_ptr<Command> make_diff();
std::unique_ptr<Command> make_hash();
std::unique_ptr<Command> make_plan();
std::unique_ptr<Command> make_load();
std::unique_ptr<Command> make_edit();
std::unique_ptr<Command> make_repair();
std::unique_ptr<Command> make_scan();
std::unique_ptr<Command> make_completions();

}  // namespace safemap::cli
