// Formats tensors for JSON and for the rows and columns of tables.
#include "describe.hpp"

#include <safemap/advanced/text.hpp>

#include <fmt/core.h>

namespace safemap::cli {

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
