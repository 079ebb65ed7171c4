// The rows of the table, the texts of the help, and the search for a misspelled command.
#include "commands.hpp"

#include "terminal.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace safemap::cli {
namespace {

constexpr std::array rows{
    CommandRow{"inspect", "PATH", "Lists what is in a checkpoint. Reads no tensor data.",
               "safemap inspect model.pt --tree", "safemap inspect w.safetensors --tree", make_inspect},
    CommandRow{"scan", "PATH...", "Opens every checkpoint below some folders, and says what each is.",
               "safemap scan models/ --fail-on code,damage", "safemap scan . --duplicates", make_scan},
    CommandRow{"convert", "IN... OUT", "Writes a checkpoint as safetensors: one file, or a folder of shards.",
               "safemap convert model.pt out/", "safemap convert w.safetensors half.safetensors --dtype bf16",
               make_convert},
    CommandRow{"verify", "PATH", "Checks a whole checkpoint and reports every fault.", "safemap verify out/",
               "safemap verify w.safetensors", make_verify},
    CommandRow{"diff", "A B", "Compares two checkpoints, whatever their format.", "safemap diff model.pt out/",
               "cp w.safetensors v.safetensors\n  safemap diff w.safetensors v.safetensors", make_diff},
    CommandRow{"hash", "PATH", "Prints a digest of each tensor and of the checkpoint, the same in every file format.",
               "safemap hash out/", "safemap hash w.safetensors", make_hash},
    CommandRow{"plan", "PATH --expect FILE", "Compares a checkpoint with what a model expects. Reads no tensor data.",
               "safemap plan out/ --expect model.json",
               "echo '{\"w\": {\"dtype\": \"F32\", \"shape\": [2]}}' > model.json\n"
               "  safemap plan w.safetensors --expect model.json",
               make_plan},
    CommandRow{"load", "PATH --device DEVICE", "Loads every tensor to a device and reports time, rate and memory.",
               "safemap load out/ --device host --budget 4GiB",
               "safemap load w.safetensors --device host --budget 1GiB --digest", make_load},
    CommandRow{"edit", "FILE", "Changes the metadata and the tensor names of a file.",
               "safemap edit model.safetensors --set license=mit",
               "safemap edit w.safetensors --set license=mit --rename 's/w/weight/'", make_edit},
    CommandRow{"repair", "IN OUT",
               "Rewrites a non-conforming file: removes gaps and trailing bytes, restores order and padding.",
               "safemap repair broken.safetensors repaired.safetensors",
               "safemap repair w.safetensors repaired.safetensors", make_repair},
};

// A whole safetensors file: 61 is the length of its header, and the data are the floats 1.0 and 2.0.
constexpr std::string_view example_file =
    R"(printf '\75\0\0\0\0\0\0\0{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}       )"
    R"(\0\0\200\77\0\0\0\100' > w.safetensors)";

/// Returns the values that an option accepts, given the placeholder that the help shows for it.
std::vector<std::string> words_of(std::string_view value) {
    if (value == "POLICY") return {"compatible", "strict", "lenient"};
    if (value == "ACCESS") return {"auto", "mapped", "copied"};
    if (value == "WHICH") return {"fp32", "module"};
    if (value == "HOW") return {"greedy", "balanced", "by_prefix"};
    if (value == "STYLE") return {"hub", "transformers"};
    if (value == "WHEN") return {"auto", "keep", "drop"};
    if (value == "A") return {"xxh3-128", "sha256"};
    if (value == "WHAT") return {"code", "damage"};
    if (value == "DEVICE") return {"host"};
    if (value == "D") return {"bf16", "f16", "f32", "f64", "f8_e4m3", "f8_e5m2"};
    return {};
}

OptionHelp help_of(const CLI::Option& option) {
    OptionHelp help;
    if (!option.get_snames().empty()) help.short_name = "-" + option.get_snames().front();
    if (!option.get_lnames().empty()) help.name = "--" + option.get_lnames().front();
    if (option.get_expected_min() > 0) help.value = option.get_type_name();
    help.text = option.get_description();
    help.words = words_of(help.value);
    return help;
}

/// Formats a list of terms with their descriptions: beside the term, or below it if there is no room.
std::string terms(const std::vector<std::pair<std::string, std::string>>& list, std::size_t columns) {
    constexpr std::size_t widest = 30;
    std::size_t width = 0;
    for (const auto& [term, text] : list)
        if (term.size() <= widest) width = std::max(width, term.size());
    const std::size_t indent = columns < 2 * width ? 6 : width + 4;
    std::string lines;
    for (const auto& [term, text] : list) {
        lines += "  " + term;
        if (2 + term.size() + 2 > indent) lines += '\n' + std::string(indent, ' ');
        else lines.append(indent - 2 - term.size(), ' ');
        lines += wrapped(text, columns, indent) + '\n';
    }
    return lines;
}

std::string term_of(const OptionHelp& option) {
    std::string term = option.short_name.empty() ? std::string() : option.short_name + ", ";
    term += option.name;
    return option.value.empty() ? term : term + ' ' + option.value;
}

/// Returns the edit distance: letters to change, add, remove or swap with their neighbour.
std::size_t edits(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        before = std::exchange(above, row);
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
    }
    return row[b.size()];
}

}  // namespace

std::span<const CommandRow> commands() { return rows; }

const CommandRow* find_command(std::string_view name) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const CommandRow& r) { return r.name == name; });
    return row == rows.end() ? nullptr : &*row;
}

std::unique_ptr<CLI::App> parser_of(const CommandRow& row, Command& command) {
    auto app = std::make_unique<CLI::App>(std::string(row.purpose), fmt::format("safemap {}", row.name));
    app->set_help_flag("-h,--help", "show this help");
    app->option_defaults()->disable_flag_override();  // a flag is given or not: `--quiet=false` is refused
    command.declare(*app);
    command.common.declare(*app);
    return app;
}

CommandHelp describe(const CommandRow& row) {
    const std::unique_ptr<Command> command = row.make();
    const std::unique_ptr<CLI::App> app = parser_of(row, *command);
    CommandHelp help;
    for (const CLI::Option* const option : std::as_const(*app).get_options()) {
        if (option->get_group().empty()) continue;  // hidden
        OptionHelp shown = help_of(*option);
        if (option->get_positional()) {
            shown.name = option->get_name(true);
            help.arguments.push_back(std::move(shown));
        } else {
            help.options.push_back(std::move(shown));
        }
    }
    // --help comes last, because users know it.
    const auto asks = [](const OptionHelp& option) { return option.name != "--help"; };
    std::stable_partition(help.options.begin(), help.options.end(), asks);
    return help;
}

std::string usage(std::size_t columns) {
    std::vector<std::pair<std::string, std::string>> list;
    for (const CommandRow& row : rows) list.emplace_back(fmt::format("{:<8} {}", row.name, row.arguments), row.purpose);
    std::string text = "Usage: safemap COMMAND PATH... [options]\n\nCommands:\n" + terms(list, columns);
    text += '\n' + wrapped(
                       "safemap COMMAND --help (or safemap help COMMAND) lists the options of a command. safemap "
                       "--version prints the version.",
                       columns, 0);
    return text + '\n';
}

std::string help_text(const CommandRow& row, std::size_t columns) {
    const CommandHelp help = describe(row);
    std::string text = fmt::format("{}\n\n{}\n\nUsage: safemap {} {} [options]\n", row.call,
                                   wrapped(row.purpose, columns, 0), row.name, row.arguments);
    const auto add = [&](std::string_view title, const std::vector<OptionHelp>& options) {
        std::vector<std::pair<std::string, std::string>> list;
        for (const OptionHelp& option : options) list.emplace_back(term_of(option), option.text);
        text += fmt::format("\n{}:\n{}", title, terms(list, columns));
    };
    add("Arguments", help.arguments);
    add("Options", help.options);
    return text + fmt::format("\nExample:\n  cd \"$(mktemp -d)\"\n  {}\n  {}\n", example_file, row.example);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    const std::string* best = nullptr;
    const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
    std::size_t least = std::max<std::size_t>(letters / 3, 1) + 1;
    for (const std::string& candidate : candidates) {
        const std::size_t distance = edits(word, candidate);
        if (distance >= least) continue;
        least = distance;
        best = &candidate;
    }
    return best == nullptr ? std::string() : *best;
}

}  // namespace safemap::cli
