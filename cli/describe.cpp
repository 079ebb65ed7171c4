// Formats tensors for JSON and for the rows and columns of tables.
#include "describe.hpp"

#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>

namespace safemap::cli {
namespace {

/// Returns a name as code of Markdown in a cell of a table.
std::string markdown_code(const std::string& name) {
    std::string text;
    for (const char c : printable(name)) text += c == '|' ? std::string("\\|") : std::string(1, c);
    // Code that has a backtick is between two of them, with spaces that are not shown.
    return text.find('`') == text.npos ? fmt::format("`{}`", text) : fmt::format("`` {} ``", text);
}

bool is_formula(std::string_view cell) {
    // The last four are the wide forms of the others.
    constexpr std::string_view begins[] = {"=", "+", "-", "@", "\uFF1D", "\uFF0B", "\uFF0D", "\uFF20"};
    return std::any_of(std::begin(begins), std::end(begins), [&](auto begin) { return cell.starts_with(begin); });
}

/// Returns the number that a part of a name is, or nothing: "12" for ".12".
std::string_view number_in(std::string_view part) {
    if (part.starts_with('.') || part.starts_with('/')) part.remove_prefix(1);
    return part.find_first_not_of("0123456789") == part.npos ? part : std::string_view();
}

constexpr char reference = '\1';  // printable() leaves none in a text

/// Returns `other` with a reference to a part of `stored` for each number that `stored` has too. Numbers are compared
/// from the end: what only one of the two has is more often in front.
std::string relative_name(const std::string& other, const NameParts& stored) {
    const NameParts parts = name_parts(other);
    std::vector<std::string> texts(parts.size());
    std::vector<bool> taken(stored.size(), false);
    for (std::size_t i = parts.size(); i-- > 0;) {
        const std::string_view number = number_in(parts[i]);
        std::size_t place = number.empty() ? 0 : stored.size();
        while (place > 0 && (taken[place - 1] || number_in(stored[place - 1]) != number)) --place;
        texts[i] = printable(place == 0 ? parts[i] : parts[i].substr(0, parts[i].size() - number.size()));
        if (place == 0) continue;
        taken[place - 1] = true;
        texts[i] += {reference, static_cast<char>(' ' + place)};
    }
    std::string text;
    for (const std::string& each : texts) text += each;
    return text;
}

/// Returns `text` with the folded numbers in the places of the references.
std::string absolute_name(std::string_view text, const NameParts& stored) {
    std::string name;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != reference) {
            name += text[i];
            continue;
        }
        const std::string& part = stored[static_cast<std::size_t>(text[++i] - ' ' - 1)];
        name += part.substr(part.find_first_of("{0123456789"));
    }
    return name;
}

}  // namespace

void write_parts(JsonWriter& json, const Checkpoint& checkpoint) {
    json.member("root", checkpoint.root());
    json.key("parts").begin_array();
    for (const StatePart& part : checkpoint.all_parts())
        json.begin_object()
            .member("name", part.name)
            .member("tensors", part.tensors)
            .member("bytes", part.bytes)
            .end_object();
    json.end_array();
}

void write_shape(JsonWriter& json, std::string_view key, const Shape& shape) {
    json.key(key).begin_array();
    for (const std::uint64_t dimension : shape) json.value(dimension);
    json.end_array();
}

Foldable foldable(const LazyTensor& tensor, std::uint64_t file) {
    return {tensor.name(), fmt::format("{} {}", name(tensor.dtype()), to_string(tensor.shape())), tensor.nbytes(),
            file};
}

std::vector<Table::Align> tensor_columns() {
    using enum Table::Align;
    return {left, left, left, right, left};
}

std::vector<std::string> tensor_cells(const std::string& label, const Folded& tensor) {
    const std::string files = tensor.files.empty() ? std::string() : "in " + number_ranges(tensor.files);
    return {label, tensor.times(), tensor.kind, bytes_text(tensor.bytes), files};
}

std::string tensor_table(const std::vector<Folded>& tensors) {
    Table table(tensor_columns());
    for (const Folded& tensor : tensors) table.row(tensor_cells(printable(tensor.name()), tensor));
    return table.text();
}

std::string markdown_table(const std::vector<Folded>& tensors) {
    std::string text = "| name | tensors | dtype | shape | size |\n| --- | ---: | --- | --- | ---: |\n";
    for (const Folded& tensor : tensors) {
        const std::size_t space = tensor.kind.find(' ');
        text += fmt::format("| {} | {} | {} | {} | {} |\n", markdown_code(tensor.name()), tensor.count,
                            tensor.kind.substr(0, space), tensor.kind.substr(space + 1), bytes_text(tensor.bytes));
    }
    return text;
}

std::string csv_line(const std::vector<std::string>& cells) {
    std::string line;
    for (const std::string& cell : cells) {
        if (&cell != &cells.front()) line += ',';
        std::string text = (is_formula(cell) ? "'" : "") + printable(cell);
        if (text.find_first_of(",\"") != text.npos) {
            for (std::size_t i = 0; (i = text.find('"', i)) != text.npos; i += 2) text.insert(i, 1, '"');
            text = '"' + text + '"';
        }
        line += text;
    }
    return line + '\n';
}

std::vector<std::string> tied_names(const std::vector<AliasGroup>& groups) {
    std::vector<Foldable> stored;
    for (const AliasGroup& group : groups) {
        // The stored name is not repeated: a name may be as long as the file.
        const NameParts parts = name_parts(group.front());
        std::string others;
        for (std::size_t i = 1; i < group.size(); ++i) others += relative_name(group[i], parts) + " = ";
        stored.push_back({.name = group.front(), .kind = std::move(others)});
    }
    std::vector<std::string> lines;
    for (const Folded& group : fold(stored))
        lines.push_back(absolute_name(group.kind, group.parts) + printable(group.name()));
    return lines;
}

std::string kind_table(const std::vector<Folded>& folded) {
    Table table(std::vector(3, Table::Align::left));
    for (const Folded& each : folded) table.row({printable(each.name()), each.times(), each.kind});
    return table.text();
}

std::string note_lines(const std::vector<std::string>& notes) {
    std::string lines;
    for (const std::string& note : notes) lines += "  " + printable(note) + '\n';
    return lines;
}

std::string section(std::string_view title, const std::string& lines) {
    return lines.empty() ? std::string() : fmt::format("\n{}\n{}", title, lines);
}

}  // namespace safemap::cli
