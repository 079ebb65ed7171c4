// Shows tensors as JSON and as tables, in which the layers of a model are folded into one line.
#pragma once

#include "output.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/lazy_tensor.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// Writes a shape as the member `key`: [2, 3].
void write_shape(JsonWriter& json, std::string_view key, const Shape& shape);

/// Returns a tensor as fold() takes it: tensors of the same dtype and shape are folded. `file` as in Foldable.
Foldable foldable(const LazyTensor& tensor, std::uint64_t file = 0);

/// Columns of a table of tensors: name, "x 80", "F32 [2, 3]", "1.9 kB" and "in {1..4}", the numbers of their files.
std::vector<Table::Align> tensor_columns();
std::vector<std::string> tensor_cells(const std::string& label, const Folded& tensor);
std::string tensor_table(const std::vector<Folded>& tensors);

/// Returns a line for each group: names, count and kind.
std::string kind_table(const std::vector<Folded>& folded);

/// Returns a line for each note.
std::string note_lines(const std::vector<std::string>& notes);
/// Returns an empty line, the title and the lines; empty if there are no lines.
std::string section(std::string_view title, const std::string& lines);

}  // namespace safemap::cli
