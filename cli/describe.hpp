// Shows tensors as JSON and as tables, in which the layers of a model are folded into one line.
#pragma once

#include "output.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/lazy_tensor.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// Writes the members `root` and `parts`.
void write_parts(JsonWriter& json, const Checkpoint& checkpoint);

/// Writes a shape as the member `key`: [2, 3].
void write_shape(JsonWriter& json, std::string_view key, const Shape& shape);

/// Returns a tensor as fold() takes it: tensors of the same dtype and shape are folded. `file` as in Foldable.
Foldable foldable(const LazyTensor& tensor, std::uint64_t file = 0);

/// Columns of a table of tensors: name, "x 80", "F32 [2, 3]", "1.9 kB" and "in {1..4}", the numbers of their files.
std::vector<Table::Align> tensor_columns();
std::vector<std::string> tensor_cells(const std::string& label, const Folded& tensor);
std::string tensor_table(const std::vector<Folded>& tensors);

/// Returns the same as a table of Markdown: name, count, dtype, shape and size.
std::string markdown_table(const std::vector<Folded>& tensors);
/// Returns a line of CSV, quoted as in RFC 4180. Control characters are escaped as printable() does. A cell that a
/// spreadsheet would take for a formula gets an apostrophe before it.
std::string csv_line(const std::vector<std::string>& cells);

/// Returns "other = stored" for each group of tied names, whose stored name comes first. Groups that differ only in
/// numbers are one line: "head.{0..7}.w = body.{0..7}.w".
std::vector<std::string> tied_names(const std::vector<AliasGroup>& groups);

/// Returns a line for each group: names, count and kind.
std::string kind_table(const std::vector<Folded>& folded);

/// Returns a line for each note.
std::string note_lines(const std::vector<std::string>& notes);
/// Returns an empty line, the title and the lines; empty if there are no lines.
std::string section(std::string_view title, const std::string& lines);

}  // namespace safemap::cli
