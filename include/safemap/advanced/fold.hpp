// Folds names that differ in numbers only, so that eighty layers read as one: model.layers.{0..79}.mlp.weight.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A name cut at its dots and slashes, into 64 parts at most; each keeps the separator before it: "a", ".b", "/c".
using NameParts = std::vector<std::string>;
SAFEMAP_API NameParts name_parts(std::string_view name);

/// What is folded: a name, and what has to be equal for two names to be folded.
struct Foldable {
    std::string name;
    std::string kind = {};
    std::uint64_t bytes = 0;
    std::uint64_t file = 0;  ///< the number of the file it is in, from 1; 0 for none
};

/// Names that differ only in the numbers in braces.
struct SAFEMAP_API Folded {
    NameParts parts;  ///< "model", ".layers", ".{0..79}"
    std::string kind;
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> files = {};  ///< rising

    std::string name() const;
    /// "x 80"; nothing for a name alone.
    std::string times() const;
};

/// In the order of the first name of each. The braces say exactly which names there are: what is folded together
/// has every combination of the numbers. Takes time and memory in proportion to the names.
SAFEMAP_API std::vector<Folded> fold(const std::vector<Foldable>& names);

/// What a person calls the part of the model that a name belongs to: the name up to its first number, or else without
/// its last part. "model.layers" of "model.layers.0.mlp.weight", "model.norm" of "model.norm.weight", "" of "0.bias".
SAFEMAP_API std::string prefix_of(std::string_view name);

/// "{0..79}", "{0..3,7}"; "5" for a single number. `numbers` rises.
SAFEMAP_API std::string number_ranges(const std::vector<std::uint64_t>& numbers);

}  // namespace safemap::SAFEMAP_ABI
