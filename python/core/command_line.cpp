// The command line, for the script `safemap` and for `python -m safemap`.
#include "core.hpp"

#include "run.hpp"

namespace safemap::python {
namespace {

/// Returns the words as the bytes that a shell passed. Raises TypeError for anything but texts.
std::vector<std::string> words_from(nb::handle list) {
    std::vector<std::string> words;
    for (const nb::handle word : list) {
        const nb::object bytes = nb::steal(PyUnicode_EncodeFSDefault(word.ptr()));
        if (!bytes.is_valid()) throw nb::python_error();
        words.emplace_back(PyBytes_AsString(bytes.ptr()));
    }
    return words;
}

int run_command_line(nb::handle program, nb::handle words) {
    const std::vector<std::string> first = words_from(program);
    const std::vector<std::string> rest = words_from(words);
    return without_gil([&] { return cli::run(first, rest); });
}

}  // namespace

void bind_command_line(nb::module_& module) {
    module.def(
        "run_command_line", run_command_line, nb::arg("program"), nb::arg("words"),
        nb::sig("def run_command_line(program: list[str], words: list[str]) -> int"),
        "Runs a command with these words, and returns the exit code. `program` is what started it, for messages.\n"
        "Meanwhile signals do what they do to the program `safemap`: Ctrl-C ends the process.");
}

}  // namespace safemap::python
