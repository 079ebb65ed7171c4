// The rows of the table, and the texts of the help.
#include "commands.hpp"

#include "terminal.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace safemap::cli {
namespace {

constexpr std::array rows{
    CommandRow{"inspect", "PATH", "Lists what is in a checkpoint. Reads no tensor data.",
               "safemap inspect model.pt --tree",
               "safemap inspect model.pt --include 'layers.0.*'\n"
               "safemap inspect model.pt --globals\n"
               "safemap inspect model.pt --format csv > tensors.csv\n",
               make_inspect},
    CommandRow{"scan", "PATH...", "Opens every checkpoint below some folders, and says what each is.",
               "safemap scan models/",
               "safemap scan downloads/ --fail-on code,unknown,damage\n"
               "safemap scan models/ --duplicates\n"
               "safemap scan models/ --include '*.ckpt' --json-lines\n",
               make_scan},
    CommandRow{"convert", "IN... OUT", "Writes a checkpoint as safetensors: one file, or a folder of shards.",
               "safemap convert model.pt out/",
               "safemap convert model.pt model.safetensors\n"
               "safemap convert run/ out/ --dtype bf16\n"
               "safemap convert train.pt out/ --root model\n"
               "safemap convert model.pt out/ --max-shard-size 2GB --checksums\n"
               "safemap convert part-*.safetensors -o out/\n",
               make_convert},
    CommandRow{"verify", "PATH", "Checks a whole checkpoint and reports every fault.", "safemap verify out/",
               "safemap verify model.pt --strict-globals\n", make_verify},
    CommandRow{"diff", "A B", "Compares two checkpoints, whatever their format.", "safemap diff model.pt out/",
               "safemap diff model.pt out/ --cast --rtol 0.004\n", make_diff},
    CommandRow{"hash", "PATH", "Prints a digest of each tensor and of the checkpoint, the same in every file format.",
               "safemap hash out/", "safemap hash model.pt --include 'layers.0.*'\n", make_hash},
    CommandRow{"plan", "PATH --expect FILE", "Compares a checkpoint with what a model expects. Reads no tensor data.",
               "safemap plan out/ --expect model.json", "safemap plan out/ --expect model.pt --non-strict\n",
               make_plan},
    CommandRow{"load", "PATH --device DEVICE", "Loads every tensor to a device and reports time, rate and memory.",
               "safemap load out/ --device host --budget 4GiB",
               "safemap load model.safetensors --device host --digest\n", make_load},
    CommandRow{"edit", "FILE", "Changes the metadata and the tensor names of a file.",
               "safemap edit model.safetensors --set license=mit",
               "safemap edit model.safetensors --rename 's/^layers/model.layers/'\n", make_edit},
    CommandRow{"repair", "IN OUT",
               "Rewrites a non-conforming file: removes gaps and trailing bytes, restores order and padding.",
               "safemap repair broken.safetensors repaired.safetensors",
               "safemap repair broken.safetensors -o repaired/ --checksums\n", make_repair},
    CommandRow{"completions", "SHELL", "Prints the completions of bash, zsh or fish.", "safemap completions bash",
               "source <(safemap completions bash)\n"
               "safemap completions fish > safemap.fish\n",
               make_completions},
};

/// Returns the values that an option accepts, given the placeholder that the help shows for it.
std::vector<std::string> words_of(std::string_view value) {
    if (value == "POLICY") return {"compatible", "strict", "lenient"};
    if (value == "ACCESS") return {"auto", "mapped", "copied"};
    if (value == "WHICH") return {"fp32", "module"};
    if (value == "HOW") return {"greedy", "balanced", "by_prefix"};
    if (value == "STYLE") return {"hub", "transformers"};
    if (value == "WHEN") return {"auto", "keep", "drop"};
    if (value == "ALGORITHM") return {"xxh3-128", "sha256"};
    if (value == "WHAT") return {"code", "unknown", "damage", "format", "code,unknown,damage,format"};
    if (value == "DEVICE") return {"host"};
    if (value == "FORMAT") return {"text", "md", "csv", "json"};
    if (value == "SHELL") return {"bash", "zsh", "fish"};
    if (value == "D") return {"bf16", "f16", "f32", "f64", "f8_e4m3", "f8_e5m2"};
    return {};
}

OptionHelp help_of(const CLI::Option& option) {
    OptionHelp help;
    if (!option.get_snames().empty()) help.short_name = "-" + option.get_snames().front();
    if (!option.get_lnames().empty()) help.name = "--" + option.get_lnames().front();
    else help.name = std::exchange(help.short_name, {});
    help.group = option.get_group();
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

}  // namespace

std::span<const CommandRow> commands() { return rows; }

const CommandRow* find_command(std::string_view name) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const CommandRow& r) { return r.name == name; });
    return row == rows.end() ? nullptr : &*row;
}

std::unique_ptr<CLI::App> parser_of(const CommandRow& row, Command& command) {
    auto app = std::make_unique<CLI::App>(std::string(row.purpose), fmt::format("safemap {}", row.name));
    app->set_help_flag("-h,--help", "show this help")->group("Every command");
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
            shown.group.clear();
            shown.words = words_of(shown.name);
            help.arguments.push_back(std::move(shown));
        } else {
            help.options.push_back(std::move(shown));
        }
    }
    // The groups stay in the order of their first options. --help comes last, because users know it.
    std::vector<std::string> groups;
    const auto place = [&groups](const OptionHelp& option) {
        const auto known = std::find(groups.begin(), groups.end(), option.group);
        return std::pair(known - groups.begin(), option.name == "--help");
    };
    for (const OptionHelp& option : help.options)
        if (option.name != "--help" && std::find(groups.begin(), groups.end(), option.group) == groups.end())
            groups.push_back(option.group);
    std::stable_sort(help.options.begin(), help.options.end(),
                     [&](const OptionHelp& a, const OptionHelp& b) { return place(a) < place(b); });
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
    for (auto begin = help.options.begin(); begin != help.options.end();) {
        const auto end =
            std::find_if(begin, help.options.end(), [&](const auto& o) { return o.group != begin->group; });
        add(begin->group, {begin, end});
        begin = end;
    }
    text += "\nExamples:\n";
    for (std::string_view left = row.examples; !left.empty(); left.remove_prefix(left.find('\n') + 1))
        text += fmt::format("  {}\n", left.substr(0, left.find('\n')));
    return text;
}

}  // namespace safemap::cli
