// Folds names that differ only in numbers, so that eighty layers print as one: model.layers.{0..79}.mlp.weight.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A name split at its dots and slashes into at most 64 parts. Each part keeps the separator before it: "a", ".b",
/// "/c".
using NameParts = std::vector<std::string>;
/// Returns the parts of `name`.
[[nodiscard]] SAFEMAP_API NameParts name_parts(std::string_view name);

/// A name to fold. Only names of one kind are folded together; bytes are added up, files are collected.
struct Foldable {
    std::string name;
    std::string kind = {};    ///< any text, such as dtype and shape
    std::uint64_t bytes = 0;  ///< size of the tensor
    std::uint64_t file = 0;   ///< number of the file that holds it, from 1; 0: no file
};

/// A group of names that differ only in the numbers in braces.
struct SAFEMAP_API Folded {
    NameParts parts;  ///< "model", ".layers", ".{0..79}"
    std::string kind;
    std::uint64_t count = 0;                ///< number of names
    std::uint64_t bytes = 0;                ///< sum over all names
    std::vector<std::uint64_t> files = {};  ///< in ascending order

    /// Returns the parts joined: "model.layers.{0..79}".
    [[nodiscard]] std::string name() const;
    /// Returns "x 80" for a group of 80 names, and an empty text for a single name.
    [[nodiscard]] std::string times() const;
};

/// Folds names into groups. Returns the groups in the order of their first names. The braces are exact: every
/// combination of the numbers in them is one of the names. Time and memory are linear in the names.
///
/// A number is a part that consists of digits. Digits with zeros in front are folded with digits of the same width, and
/// may then follow other characters of their part: "w{000..127}" for "w000" to "w127".
///
/// Example:
///     auto groups = safemap::fold({{.name = "layers.0.weight"}, {.name = "layers.1.weight"}});
///     std::string name = groups[0].name();    // "layers.{0..1}.weight"
///     std::string times = groups[0].times();  // "x 2"
[[nodiscard]] SAFEMAP_API std::vector<Folded> fold(const std::vector<Foldable>& names);
/// Folds the names that `name_at` returns for the numbers below `count`. Calls it twice for each number, and keeps no
/// name that is folded: memory is linear in the groups. Exceptions of `name_at` pass
/// through. Throws invalid_argument for an empty function.
[[nodiscard]] SAFEMAP_API std::vector<Folded> fold(std::size_t count,
                                                   const std::function<Foldable(std::size_t)>& name_at);

/// Returns the name of the model part that a tensor belongs to: the name up to its first number, or, without a number,
/// the name without its last part. "model.layers" for "model.layers.0.mlp.weight", "model.norm" for
/// "model.norm.weight", "" for "0.bias".
[[nodiscard]] SAFEMAP_API std::string prefix_of(std::string_view name);

/// Returns numbers as ranges: "{0..79}", "{0..3,7}", and "5" for a single number. `numbers` must be ascending.
[[nodiscard]] SAFEMAP_API std::string number_ranges(const std::vector<std::uint64_t>& numbers);

}  // namespace safemap::SAFEMAP_ABI
