// safemap inspect: what is in a checkpoint, without reading a byte of a tensor.
#include "command.hpp"
#include "entries.hpp"
#include "fold.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <utility>

namespace safemap::cli {
namespace {

using Align = Table::Align;

/// How a file that holds tensors is called among Checkpoint::files().
class FileNames {
public:
    explicit FileNames(const std::vector<std::string>& files) : files_(files) {}

    const std::string& of(const Source& source) {
        const auto [known, fresh] = names_.try_emplace(&source);
        if (fresh) known->second = find(source.name());
        return known->second;
    }

private:
    std::string find(const std::string& path) const {
        for (const std::string& file : files_) {
            const bool ends = path.size() > file.size() && path.ends_with(file);
            if (path == file || (ends && path[path.size() - file.size() - 1] == '/')) return file;
        }
        return std::filesystem::path(path).filename().string();
    }

    const std::vector<std::string>& files_;
    std::unordered_map<const Source*, std::string> names_;
};

void write_tensor(JsonWriter& json, const Entry& entry, const std::string& name, FileNames& files) {
    const LazyTensor& tensor = entry.tensor;
    json.begin_object();
    json.member("name", name).member("dtype", safemap::name(tensor.dtype()));
    json.key("shape").begin_array();
    for (const std::uint64_t dimension : tensor.shape()) json.value(dimension);
    json.end_array();
    json.member("nbytes", tensor.nbytes()).member("pieces", tensor.piece_count());
    // An inflated stream has an offset too, but not one in a file.
    const auto placement = tensor.placement();
    if (placement && placement->source->is_file())
        json.member("file", files.of(*placement->source)).member("offset", placement->extent.offset);
    if (name != entry.stored_name) json.member("alias_of", entry.stored_name);
    json.end_object();
}

JsonWriter as_json(const Checkpoint& checkpoint, const std::vector<Entry>& entries) {
    FileNames files(checkpoint.files());
    JsonWriter json;
    json.begin_object();
    json.member("format", name(checkpoint.format())).member("files", checkpoint.files());
    json.key("metadata").begin_object();
    for (const auto& [key, value] : checkpoint.metadata()) json.member(key, value);
    json.end_object();
    json.member("total_bytes", total_bytes(entries));
    json.key("tensors").begin_array();
    for (const Entry& entry : entries)
        for (const std::string& name : entry.names) write_tensor(json, entry, name, files);
    json.end_array();
    json.key("objects").begin_array();
    for (const SkippedObject& object : checkpoint.skipped())
        json.begin_object().member("name", object.name).member("type", object.type).end_object();
    json.end_array();
    json.member("notes", checkpoint.notes());
    json.end_object();
    return json;
}

std::vector<Folded> fold_entries(const std::vector<Entry>& entries) {
    std::vector<Foldable> names;
    names.reserve(entries.size());
    for (const Entry& entry : entries) {
        const LazyTensor& tensor = entry.tensor;
        names.push_back(
            {tensor.name(), fmt::format("{} {}", name(tensor.dtype()), to_string(tensor.shape())), tensor.nbytes()});
    }
    return fold(names);
}

std::string times(const Folded& folded) { return folded.count > 1 ? fmt::format("x {}", folded.count) : std::string(); }

std::string tensor_table(const std::vector<Folded>& tensors) {
    Table table({Align::left, Align::left, Align::left, Align::right});
    for (const Folded& tensor : tensors)
        table.row({printable(tensor.name()), times(tensor), tensor.kind, bytes_text(tensor.bytes)});
    return table.text();
}

/// One line for each part of a name that tensors branch at.
class Tree {
public:
    explicit Tree(const std::vector<Folded>& tensors) {
        for (const Folded& tensor : tensors) add(tensor);
    }

    std::string text() const {
        Table table({Align::left, Align::left, Align::left, Align::right});
        for (const std::size_t child : nodes_[0].children) write(table, child, 0);
        return table.text();
    }

private:
    struct Node {
        std::string part = {};
        std::vector<std::size_t> children = {};
        std::unordered_map<std::string, std::size_t> by_part = {};
        std::vector<Folded> tensors = {};  // that end here: more than one where dtypes or shapes differ
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
        }
        nodes_[node].tensors.push_back(tensor);
    }

    void write(Table& table, std::size_t id, std::size_t depth) const {
        // Parts that lead to one place only share a line.
        std::string path;
        while (true) {
            path += nodes_[id].part;
            if (nodes_[id].children.size() != 1 || !nodes_[id].tensors.empty()) break;
            id = nodes_[id].children.front();
        }
        if (depth > 0) path.erase(0, 1);  // the separator, which the indent says already
        const std::string label = std::string(2 * depth, ' ') + printable(path);
        const Node& node = nodes_[id];
        if (node.tensors.empty()) table.row({label, "", "", ""});
        for (const Folded& tensor : node.tensors)
            table.row({label, times(tensor), tensor.kind, bytes_text(tensor.bytes)});
        for (const std::size_t child : node.children) write(table, child, depth + 1);
    }

    std::vector<Node> nodes_ = {Node{}};
};

struct Total {
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
};

std::string dtype_totals(const std::vector<Entry>& entries) {
    std::map<Dtype, Total> totals;
    for (const Entry& entry : entries) {
        Total& total = totals[entry.tensor.dtype()];
        ++total.tensors;
        total.bytes += entry.tensor.nbytes();
    }
    Table table({Align::left, Align::right, Align::right});
    for (const auto& [dtype, total] : totals)
        table.row({std::string(name(dtype)), count_text(total.tensors, "tensor"), bytes_text(total.bytes)});
    return table.text();
}

std::string shortened(const std::string& text) {
    constexpr std::size_t longest = 100;
    return text.size() <= longest ? printable(text) : printable(text.substr(0, longest)) + " ...";
}

std::string section(std::string_view title, const std::string& lines) {
    return lines.empty() ? std::string() : fmt::format("\n{}\n{}", title, lines);
}

std::string tied_lines(const std::vector<Entry>& entries) {
    std::string lines;
    for (const Entry& entry : entries) {
        for (const std::string& name : entry.names)
            if (name != entry.stored_name)
                lines += fmt::format("  {} = {}\n", printable(name), printable(entry.stored_name));
    }
    return lines;
}

std::string metadata_lines(const Checkpoint& checkpoint) {
    Table table({Align::left, Align::left});
    for (const auto& [key, value] : checkpoint.metadata()) table.row({shortened(key), shortened(value)});
    return table.text();
}

std::string object_lines(const Checkpoint& checkpoint) {
    constexpr std::size_t most = 20;  // an optimizer's scalars would fill the screen
    const auto& objects = checkpoint.skipped();
    Table table({Align::left, Align::left});
    for (std::size_t i = 0; i < std::min(objects.size(), most); ++i)
        table.row({printable(objects[i].name), printable(objects[i].type)});
    std::string lines = table.text();
    if (objects.size() > most) lines += fmt::format("  and {} more; --json lists them all\n", objects.size() - most);
    return lines;
}

std::string note_lines(const Checkpoint& checkpoint) {
    std::string lines;
    for (const std::string& note : checkpoint.notes()) lines += fmt::format("  {}\n", printable(note));
    return lines;
}

class Inspect final : public Command {
public:
    void declare(CLI::App& app) override {
        app.add_option("PATH", path_, "a file, a folder or an index")->required()->type_name("");
        app.add_flag("--tree", tree_, "names as a tree");
    }

    int run(Console& console) override {
        const Checkpoint checkpoint = Checkpoint::open(path_, common.open);
        const std::vector<Entry> entries = select_entries(checkpoint, common.selection());
        if (console.json()) console.result(as_json(checkpoint, entries));
        else console.result(as_text(checkpoint, entries));
        return 0;
    }

private:
    std::string as_text(const Checkpoint& checkpoint, const std::vector<Entry>& entries) const {
        const std::vector<Folded> folded = fold_entries(entries);
        std::string text = fmt::format("{}: {}, {}, {}, {}\n", printable(path_), name(checkpoint.format()),
                                       count_text(checkpoint.files().size(), "file"),
                                       count_text(entries.size(), "tensor"), bytes_text(total_bytes(entries)));
        text += section("tensors", tree_ ? Tree(folded).text() : tensor_table(folded));
        text += section("dtypes", dtype_totals(entries));
        text += section("tied", tied_lines(entries));
        text += section("metadata", metadata_lines(checkpoint));
        text += section("objects", object_lines(checkpoint));
        text += section("notes", note_lines(checkpoint));
        return text;
    }

    std::string path_;
    bool tree_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect() { return std::make_unique<Inspect>(); }

}  // namespace safemap::cli
