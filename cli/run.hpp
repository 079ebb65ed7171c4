// The whole command line as one function, for the program and for Python.
#pragma once

#include <span>
#include <string>

namespace safemap::cli {

/// Runs a command, and returns the exit code. `words` are the arguments, and `program` is what a shell started:
/// "safemap", or "python3 -m safemap" in three words. Writes to the descriptors of stdout and stderr, and reports every
/// error itself. Handles signals while it runs: SIGINT, SIGTERM and SIGHUP end the process, as they end the program.
/// Afterwards the signals do what they did before. Only one call may run at a time.
int run(std::span<const std::string> program, std::span<const std::string> words);

}  // namespace safemap::cli
