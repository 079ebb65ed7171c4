// safemap inspect: lists the contents of a checkpoint. Reads no tensor data. From top to bottom:
//   - FileNames: the name of a tensor's file, relative to the checkpoint.
//   - write_tensor() and write_globals(): parts of the JSON report.
//   - Chosen: the checkpoint, and the names and tensors that the options select.
//   - as_json(): the report as JSON.
//   - Shards: the numbers and totals of the files.
//   - Tree: the names as a tree, for --tree.
//   - the functions ..._lines(): one section of the text report each.
//   - Inspect: the options; run() opens the checkpoint and prints one of the two reports.
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/advanced/text.hpp>

#include "command.hpp"
#include "describe.hpp"
#include "entries.hpp"
#include "layout.hpp"
#include "parse.hpp"
#include "verdicts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include <unistd.h>

namespace safemap::cli {
namespace {

using Align = Table::Align;

/// Returns the folder that Checkpoint::files() are relative to.
std::filesystem::path folder_of(const std::filesystem::path& path) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return path;
    return path.has_parent_path() ? path.parent_path() : ".";
}

/// The name of a source in Checkpoint::files(). Whole paths are compared, not their last part: there may be a
/// "sub/m.safetensors" beside "m.safetensors".
class FileNames {
public:
    FileNames(const Checkpoint& checkpoint, const std::filesystem::path& path) {
        const std::filesystem::path folder = folder_of(path);
        for (const std::string& file : checkpoint.files()) names_.emplace((folder / file).native(), file);
    }

    const std::string& of(const Source& source) {
        const auto [known, fresh] = names_.try_emplace(source.name());
        if (fresh) known->second = std::filesystem::path(source.name()).filename().string();  // PATH itself
        return known->second;
    }

private:
    std::unordered_map<std::string, std::string> names_;  // by path
};

void write_tensor(JsonWriter& json, std::string_view name, const LazyTensor& tensor, FileNames& files) {
    json.begin_object();
    json.member("name", name).member("dtype", safemap::name(tensor.dtype()));
    write_shape(json, "shape", tensor.shape());
    json.member("nbytes", tensor.nbytes()).member("pieces", tensor.piece_count());
    // An inflated stream also has an offset, but not in a file.
    const auto placement = tensor.placement();
    if (placement && placement->source->is_file())
        json.member("file", files.of(*placement->source)).member("offset", placement->extent.offset);
    if (name != tensor.name()) json.member("alias_of", tensor.name());
    json.end_object();
}

void write_globals(JsonWriter& json, const Checkpoint& checkpoint) {
    json.key("globals").begin_array();
    for (const NamedGlobal& global : checkpoint.globals()) {
        json.begin_object().member("module", global.module).member("name", global.name).member("known", global.known);
        json.member("called", global.called).member("record", global.record);
        json.member("severity", name(global.severity)).member("why", global.why).end_object();
    }
    json.end_array();
}

/// A checkpoint and the selected part of it: all selected names (aliases included), and the tensors.
struct Chosen {
    const Checkpoint& all;
    std::vector<NamedTensor> names;
    Checkpoint tensors;

    Chosen(const Checkpoint& checkpoint, const Selection& selection)
        : all(checkpoint), names(all_names(checkpoint, selection)), tensors(checkpoint.select(selection)) {}
};

JsonWriter as_json(const Chosen& chosen, FileNames files, const std::vector<std::string>& notes,
                   const std::string& structure, bool with_globals) {
    const Checkpoint& checkpoint = chosen.all;
    JsonWriter json;
    json.begin_object();
    json.member("format", name(checkpoint.format())).member("files", checkpoint.files());
    if (checkpoint.layout()) write_layout(json, *checkpoint.layout());
    write_training(json, checkpoint.training());
    json.key("metadata").begin_object();
    for (const auto& [key, value] : checkpoint.metadata()) json.member(key, value);
    json.end_object();
    json.member("total_bytes", chosen.tensors.total_bytes());
    write_parts(json, checkpoint);
    json.key("tensors").begin_array();
    for (const NamedTensor& named : chosen.names)
        write_tensor(json, named.name, checkpoint.tensor(named.tensor), files);
    json.end_array();
    json.key("objects").begin_array();
    for (const SkippedObject& object : checkpoint.skipped())
        json.begin_object().member("name", object.name).member("type", object.type).end_object();
    json.end_array();
    write_findings(json, checkpoint.findings());
    if (with_globals) write_globals(json, checkpoint);
    json.member("notes", notes);
    if (!structure.empty()) json.key("structure").json(structure);
    json.end_object();
    return json;
}

struct Total {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;

    void add(const LazyTensor& tensor) {
        ++tensors;
        bytes += tensor.nbytes();
    }
};

/// The files of the tensors, numbered from 1 in the order of the tensors. Empty if there is only one file, or if a
/// tensor is in several.
class Shards {
public:
    Shards(const Checkpoint& tensors, FileNames files) {
        bool in_pieces = false;
        for (const LazyTensor& tensor : tensors) {
            in_pieces = in_pieces || tensor.piece_count() > 1;
            const auto placement = tensor.placement();
            if (!placement || !placement->source->is_file()) continue;
            const auto [known, fresh] = numbers_.try_emplace(placement->source.get(), totals_.size());
            if (fresh) totals_.emplace_back(files.of(*placement->source), Total{});
            totals_[known->second].second.add(tensor);
        }
        if (totals_.size() < 2 || in_pieces) numbers_.clear();
    }

    /// Returns the number of the tensor's file, or 0 if it has none or there is only one file.
    std::uint64_t number_of(const LazyTensor& tensor) const {
        const auto placement = tensor.placement();
        const auto known = placement ? numbers_.find(placement->source.get()) : numbers_.end();
        return known == numbers_.end() ? 0 : known->second + 1;
    }

    std::string lines() const {
        Table table({Align::right, Align::left, Align::right, Align::right});
        for (std::size_t i = 0; i < totals_.size() && !numbers_.empty(); ++i) {
            const auto& [file, total] = totals_[i];
            table.row(
                {std::to_string(i + 1), printable(file), count_text(total.tensors, "tensor"), bytes_text(total.bytes)});
        }
        return table.text();
    }

private:
    std::unordered_map<const Source*, std::size_t> numbers_;
    std::vector<std::pair<std::string, Total>> totals_;
};

std::vector<Folded> fold_tensors(const Checkpoint& tensors, const Shards& shards) {
    return fold(tensors.size(),
                [&](std::size_t i) { return foldable(tensors.tensor(i), shards.number_of(tensors.tensor(i))); });
}

/// Tensor names as a tree: one line for each part at which names branch.
class Tree {
public:
    explicit Tree(const std::vector<Folded>& tensors) {
        for (const Folded& tensor : tensors) add(tensor);
    }

    std::string text() const {
        Table table(tensor_columns());
        for (const std::size_t child : nodes_[0].children) write(table, child, 0);
        return table.text();
    }

private:
    struct Node {
        std::string part = {};
        std::vector<std::size_t> children = {};
        std::unordered_map<std::string, std::size_t> by_part = {};
        std::vector<Folded> tensors = {};  // tensors whose names end here: several if dtypes or shapes differ
        Total total = {};                  // total of all tensors below
    };

    void add(const Folded& tensor) {
        std::size_t node = 0;
        for (const std::string& part : tensor.parts) {
            const auto [child, fresh] = nodes_[node].by_part.try_emplace(part, nodes_.size());
            const std::size_t next = child->second;
            if (fresh) {
                nodes_[node].children.push_back(next);
                nodes_.push_back({.part = part});
            }
            node = next;
            nodes_[node].total.tensors += tensor.count;
            nodes_[node].total.bytes += tensor.bytes;
        }
        nodes_[node].tensors.push_back(tensor);
    }

    void write(Table& table, std::size_t id, std::size_t depth) const {
        // Parts with a single child share a line with it.
        std::string path;
        while (true) {
            path += nodes_[id].part;
            if (nodes_[id].children.size() != 1 || !nodes_[id].tensors.empty()) break;
            id = nodes_[id].children.front();
        }
        if (depth > 0) path.erase(0, 1);  // the separator: the indent shows it
        const std::string label = std::string(2 * depth, ' ') + printable(path);
        const Node& node = nodes_[id];
        if (node.tensors.empty())
            table.row({label, "", count_text(node.total.tensors, "tensor"), bytes_text(node.total.bytes), ""});
        for (const Folded& tensor : node.tensors) table.row(tensor_cells(label, tensor));
        for (const std::size_t child : node.children) write(table, child, depth + 1);
    }

    std::vector<Node> nodes_ = {Node{}};
};

std::string dtype_lines(const Checkpoint& tensors) {
    std::map<Dtype, Total> totals;
    for (const LazyTensor& tensor : tensors) totals[tensor.dtype()].add(tensor);
    Table table({Align::left, Align::right, Align::right});
    for (const auto& [dtype, total] : totals)
        table.row({std::string(name(dtype)), count_text(total.tensors, "tensor"), bytes_text(total.bytes)});
    return table.text();
}

/// Returns a line for each prefix. Empty if there is only one prefix, or one for each tensor.
std::string prefix_lines(const Checkpoint& tensors) {
    std::vector<std::pair<std::string, Total>> totals;
    std::unordered_map<std::string, std::size_t> numbers;
    for (const LazyTensor& tensor : tensors) {
        const std::string prefix = prefix_of(tensor.name());
        const auto [known, fresh] = numbers.try_emplace(prefix, totals.size());
        if (fresh) totals.emplace_back(prefix, Total{});
        totals[known->second].second.add(tensor);
    }
    if (totals.size() < 2 || totals.size() == tensors.size()) return {};
    Table table({Align::left, Align::right, Align::right});
    for (const auto& [prefix, total] : totals)
        table.row({prefix.empty() ? "(none)" : printable(prefix), count_text(total.tensors, "tensor"),
                   bytes_text(total.bytes)});
    return table.text();
}

/// Returns a line for each part, if names do not show the parts, or if there are several.
std::string part_lines(const Checkpoint& checkpoint) {
    const std::vector<StatePart>& parts = checkpoint.all_parts();
    if (checkpoint.root().empty() && parts.size() < 2) return {};
    Table table({Align::left, Align::right, Align::right, Align::left});
    const std::string taken = checkpoint.root().substr(0, checkpoint.root().find('/'));
    for (const StatePart& part : parts) {
        const bool is_taken = !checkpoint.root().empty() && part.name == taken;
        table.row({printable(part.name), count_text(part.tensors, "tensor"), bytes_text(part.bytes),
                   is_taken ? "names are below " + printable(checkpoint.root()) : ""});
    }
    return table.text();
}

std::string beginning_of(const std::string& text) {
    constexpr std::size_t longest = 100;
    return text.size() <= longest ? printable(text) : printable(text.substr(0, longest)) + " ...";
}

std::string tied_lines(const Chosen& chosen) {
    std::vector<AliasGroup> groups;
    for (std::size_t i = 0; i < chosen.names.size(); ++i) {
        const NamedTensor& named = chosen.names[i];
        const std::string& stored = chosen.all.tensor(named.tensor).name();
        if (named.name == stored) continue;
        if (groups.empty() || groups.back().front() != stored) groups.push_back({stored});
        groups.back().emplace_back(named.name);
    }
    return note_lines(tied_names(groups));
}

std::string csv_rows(const Chosen& chosen, FileNames files) {
    std::string text = csv_line({"name", "dtype", "shape", "bytes", "file", "alias_of"});
    for (const NamedTensor& named : chosen.names) {
        const LazyTensor& tensor = chosen.all.tensor(named.tensor);
        const auto placement = tensor.placement();
        const bool in_file = placement && placement->source->is_file();
        text += csv_line({std::string(named.name), std::string(name(tensor.dtype())), to_string(tensor.shape()),
                          std::to_string(tensor.nbytes()), in_file ? files.of(*placement->source) : std::string(),
                          named.name == tensor.name() ? std::string() : tensor.name()});
    }
    return text;
}

std::string metadata_lines(const Checkpoint& checkpoint) {
    Table table({Align::left, Align::left});
    for (const auto& [key, value] : checkpoint.metadata()) table.row({beginning_of(key), beginning_of(value)});
    return table.text();
}

std::string object_lines(const Checkpoint& checkpoint) {
    constexpr std::size_t most = 20;  // the scalars of an optimizer would fill the screen
    const auto& objects = checkpoint.skipped();
    Table table({Align::left, Align::left});
    for (std::size_t i = 0; i < std::min(objects.size(), most); ++i)
        table.row({printable(objects[i].name), printable(objects[i].type)});
    std::string lines = table.text();
    if (objects.size() > most) lines += fmt::format("  and {} more; --json lists them all\n", objects.size() - most);
    return lines;
}

/// Returns a line for each global. Dangerous ones come first, because users look for them.
std::string global_lines(const Checkpoint& checkpoint) {
    Table table({Align::left, Align::left, Align::left, Align::left, Align::left});
    for (const Verdict severity : {Verdict::runs_code, Verdict::unknown, Verdict::needs_classes, Verdict::ok}) {
        for (const NamedGlobal& global : checkpoint.globals()) {
            if (global.severity != severity) continue;
            table.row({printable(global.module + "." + global.name), std::string(name(severity)),
                       global.called ? "called" : "named", printable(global.why), printable(global.record)});
        }
    }
    return table.text();
}

class Inspect final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("PATH", path_, "a file, a folder or an index")->required()->type_name("");
        app.add_flag("--tree", tree_, "show the names as a tree");
        app.add_flag("--globals", globals_, "list every class and function that a pickle names");
        app.add_flag("--structure", structure_, "show the structure document too: every value of a nested state dict");
        add_parsed(app, "--format", format_, parse_list_format,
                   "print text (default), a table of Markdown (md), a row of CSV for each tensor (csv), or json")
            ->type_name("FORMAT");
    }

    int run(Console& console) override {
        check_format();
        const Checkpoint checkpoint = Checkpoint::open(path_, common.open);
        const Chosen chosen(checkpoint, common.selection());
        std::vector<std::string> notes = checkpoint.notes();
        const auto& lost = lost_without_structure(checkpoint);
        notes.insert(notes.end(), lost.begin(), lost.end());
        const std::string nothing = empty_selection({checkpoint}, common);
        if (!nothing.empty()) notes.push_back(nothing);
        if (console.json())
            console.result(as_json(chosen, FileNames(checkpoint, path_), notes, document(checkpoint), globals_));
        else if (format_ == ListFormat::csv) console.result(csv_rows(chosen, FileNames(checkpoint, path_)));
        else if (format_ == ListFormat::markdown) console.result(as_markdown(chosen));
        else console.result(as_text(chosen, notes) + section("structure", structure_lines(checkpoint)));
        return 0;
    }

private:
    /// Throws invalid_argument for options that --format leaves without an effect.
    void check_format() const {
        if (!format_ || *format_ == ListFormat::json) return;
        const bool list = *format_ != ListFormat::text;
        const char* const other = list && tree_        ? "--tree"
                                  : list && globals_   ? "--globals"
                                  : list && structure_ ? "--structure"
                                  : common.json        ? "--json"
                                                       : nullptr;
        if (other != nullptr)
            throw Error(Errc::invalid_argument, fmt::format("{} does not apply to this --format", other))
                .with_hint("--format md and csv list tensors only; --format json is --json");
    }

    static std::string as_markdown(const Chosen& chosen) {
        const Checkpoint& tensors = chosen.tensors;
        const auto folded = fold(tensors.size(), [&](std::size_t i) { return foldable(tensors.tensor(i)); });
        return fmt::format("{}\n{}, {}\n", markdown_table(folded), count_text(tensors.size(), "tensor"),
                           bytes_text(tensors.total_bytes()));
    }

    std::string document(const Checkpoint& checkpoint) const {
        if (!structure_) return {};
        try {
            return structure_of(checkpoint);
        } catch (Error& error) {
            throw std::move(error.with_path(path_));
        }
    }

    /// Returns the tree of values; empty if the checkpoint has only names.
    std::string structure_lines(const Checkpoint& checkpoint) const {
        if (!structure_ || checkpoint.tree() == nullptr) return {};
        std::stringstream tree;
        tree << *checkpoint.tree();
        const std::size_t columns = std::max<std::size_t>(columns_of_terminal(STDOUT_FILENO), 2) - 2;
        std::string lines;
        for (std::string line; std::getline(tree, line);)
            lines += fmt::format("  {}\n", shortened(printable(line), columns));
        return lines;
    }

    std::string as_text(const Chosen& chosen, const std::vector<std::string>& notes) const {
        const Checkpoint& checkpoint = chosen.all;
        const Checkpoint& tensors = chosen.tensors;
        const Shards shards(tensors, FileNames(checkpoint, path_));
        const std::vector<Folded> folded = fold_tensors(tensors, shards);
        std::string text = fmt::format("{}: {}, {}, {}, {}\n", printable(path_), name(checkpoint.format()),
                                       count_text(checkpoint.files().size(), "file"),
                                       count_text(tensors.size(), "tensor"), bytes_text(tensors.total_bytes()));
        if (const auto& layout = checkpoint.layout())
            text += layout_lines(*layout, name(checkpoint.format()), common.open.weights);
        text += training_line(checkpoint.training());
        text += section("tensors", tree_ ? Tree(folded).text() : tensor_table(folded));
        text += section("files", shards.lines());
        text += section("parts", part_lines(checkpoint));
        if (!tree_) text += section("prefixes", prefix_lines(tensors));
        text += section("dtypes", dtype_lines(tensors));
        text += section("tied", tied_lines(chosen));
        text += section("metadata", metadata_lines(checkpoint));
        text += section("objects", object_lines(checkpoint));
        if (globals_) text += section("globals", global_lines(checkpoint));
        text += section("notes", note_lines(notes));
        return text;
    }

    std::string path_;
    bool tree_ = false;
    bool globals_ = false;
    bool structure_ = false;
    std::optional<ListFormat> format_;
};

}  // namespace

std::unique_ptr<Command> make_inspect() { return std::make_unique<Inspect>(); }

}  // namespace safemap::cli
