// The command line: a table of commands, and how a run of one begins and ends.
#include "command.hpp"
#include "output.hpp"
#include "signals.hpp"

#include <safemap/api.hpp>
#include <safemap/error.hpp>

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <string>
#include <string_view>

namespace safemap::cli {
namespace {

struct Row {
    std::string_view name;
    std::string_view arguments;
    std::string_view purpose;
    std::string_view example;  // after a file w.safetensors has been made
    std::unique_ptr<Command> (*make)();
};

constexpr std::array commands{
    Row{"inspect", "PATH", "What is in a checkpoint. Reads no tensor byte.", "safemap inspect w.safetensors --tree",
        make_inspect},
    Row{"convert", "IN OUT", "Writes a checkpoint as safetensors: one file, or a folder of shards.",
        "safemap convert w.safetensors half.safetensors --dtype bf16", make_convert},
    Row{"verify", "PATH", "Every fault of a checkpoint, not only the first.", "safemap verify w.safetensors",
        make_verify},
    Row{"diff", "A B", "What two checkpoints do not have in common, however they are stored.",
        "cp w.safetensors v.safetensors\n  safemap diff w.safetensors v.safetensors", make_diff},
    Row{"hash", "PATH", "A digest of every tensor and of the whole, the same in any container.",
        "safemap hash w.safetensors", make_hash},
    Row{"plan", "PATH --expect FILE", "Whether a checkpoint is what a model expects. Reads no tensor byte.",
        "echo '{\"w\": {\"dtype\": \"F32\", \"shape\": [2]}}' > model.json\n"
        "  safemap plan w.safetensors --expect model.json",
        make_plan},
    Row{"load", "PATH --device DEVICE", "Brings every tensor to a device and says how it went.",
        "safemap load w.safetensors --device host --budget 1GiB --digest", make_load},
    Row{"edit", "FILE", "Changes the metadata and the names in a file.",
        "safemap edit w.safetensors --set license=mit --rename 's/w/weight/'", make_edit},
    Row{"repair", "IN OUT", "Mends what others wrote wrongly: gaps, order, padding, what follows the end.",
        "safemap repair w.safetensors mended.safetensors", make_repair},
};

// A whole safetensors file: 61 is the length of its header, and the data are the floats 1.0 and 2.0.
constexpr std::string_view example_file =
    R"(printf '\75\0\0\0\0\0\0\0{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}       )"
    R"(\0\0\200\77\0\0\0\100' > w.safetensors)";

constexpr std::string_view command_list = "safemap --help lists the commands";

std::string usage() {
    std::string text = "Usage: safemap COMMAND PATH... [options]\n\nCommands:\n";
    Table table({Table::Align::left, Table::Align::left, Table::Align::left});
    for (const Row& row : commands)
        table.row({std::string(row.name), std::string(row.arguments), std::string(row.purpose)});
    text += table.text();
    text += "\nsafemap COMMAND --help lists a command's options; safemap --version says which version this is.\n";
    return text;
}

int run_command(const Row& row, Console& console, int argc, char** argv) {
    CLI::App app(std::string(row.purpose), fmt::format("safemap {}", row.name));
    app.footer(fmt::format("Example:\n  cd \"$(mktemp -d)\"\n  {}\n  {}", example_file, row.example));
    app.option_defaults()->disable_flag_override();  // a flag is given or not: `--quiet=false` is refused
    const std::unique_ptr<Command> command = row.make();
    command->declare(app);
    command->common.declare(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        console.print(app.help());
        return 0;
    } catch (const CLI::ParseError& wrong) {
        throw Error(Errc::invalid_argument, wrong.what())
            .with_hint(fmt::format("safemap {} --help lists the options", row.name));
    }
    console.set_quiet(command->common.quiet);
    return command->run(console);
}

int run(Console& console, int argc, char** argv) {
    const std::string_view first = argc > 1 ? argv[1] : "";
    if (first == "--help" || first == "-h") {
        console.print(usage());
        return 0;
    }
    if (first == "--version") {
        console.print("safemap " SAFEMAP_VERSION "\n");
        return 0;
    }
    const auto row = std::find_if(commands.begin(), commands.end(), [&](const Row& r) { return r.name == first; });
    if (row != commands.end()) return run_command(*row, console, argc - 1, argv + 1);

    const bool none = first.empty() || first.front() == '-';
    const std::string message =
        none ? "a command comes first, before all options" : fmt::format("'{}' is not a command", printable(first));
    throw Error(Errc::invalid_argument, message).with_hint(command_list);
}

bool asks_for_json(std::string_view word) { return word == "--json" || word.starts_with("--json="); }

int fail(Console& console, const Error& error) {
    console.error(error);
    return exit_code(error.code());
}

/// Every way out of a run is one of these.
int run_and_report(Console& console, int argc, char** argv) {
    try {
        return run(console, argc, argv);
    } catch (const Error& error) {
        return fail(console, error);
    } catch (const std::bad_alloc&) {
        return fail(console, Error(Errc::out_of_memory, "an allocation failed"));
    } catch (const ReaderGone&) {
        return exit_code(Errc::io_error);
    } catch (const std::exception& error) {
        return fail(console, Error(Errc::io_error, error.what()));
    }
}

}  // namespace
}  // namespace safemap::cli

int main(int argc, char** argv) {
    using namespace safemap;
    // Known before anything is parsed: a call that is wrong is reported as it was asked for.
    const bool json = std::any_of(argv, argv + argc, cli::asks_for_json);
    cli::Console console(json);
    try {
        cli::install_signals(json);
        return cli::run_and_report(console, argc, argv);
    } catch (const cli::ReaderGone&) {
        return exit_code(Errc::io_error);
    } catch (const Error& error) {
        // Saying what went wrong went wrong: stdout is full or gone.
        console.complain(error);
        return exit_code(error.code());
    } catch (...) {
        console.complain(Error(Errc::io_error, "the report could not be written to stdout"));
        return exit_code(Errc::io_error);
    }
}
