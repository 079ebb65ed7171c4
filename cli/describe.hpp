// How commands show tensors: as JSON, and as lines in which eighty layers are one.
#pragma once

#include "output.hpp"

#include <safemap/advanced/fold.hpp>
#include <safemap/lazy_tensor.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace safemap::cli {

/// The member `key`: [2, 3].
void write_shape(JsonWriter& json, std::string_view key, const Shape& shape);

/// Tensors are folded when they have dtype and shape in common. `file` as in Foldable.
Foldable foldable(const LazyTensor& tensor, std::uint64_t file = 0);

/// "tensor", "x 80", "F32 [2, 3]", "1.9 kB" and "in {1..4}", the numbers of its files.
std::vector<Table::Align> tensor_columns();
std::vector<std::string> tensor_cells(const std::string& label, const Folded& tensor);
std::string tensor_table(const std::vector<Folded>& tensors);

/// A line for each: its names, how many they are, and of what kind.
std::string kind_table(const std::vector<Folded>& folded);

/// A line for each note.
std::string note_lines(const std::vector<std::string>& notes);
/// Lines under a title, after an empty line; nothing where there are none.
std::string section(std::string_view title, const std::string& lines);

}  // namespace safemap::cli
