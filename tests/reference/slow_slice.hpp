// The slow reference for slicing: applies Python's rules to lists of element numbers, without strides.
#pragma once

#include <safemap/advanced/strides.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace reference {

/// Returns Python's range(*slice.indices(n)), as in the language reference.
std::vector<std::int64_t> python_indices(const safemap::Slice& s, std::int64_t n);

/// A shape, and the number of the base element at each of its places, row-major.
struct Cut {
    safemap::Shape shape = {};
    std::vector<std::int64_t> elements = {};

    friend bool operator==(const Cut&, const Cut&) = default;
};

Cut whole(const safemap::Shape& shape);

/// Returns the elements that a strided view shows.
Cut walked(const safemap::StridedView& view);

/// Returns base[slices], or nothing if Python raises IndexError or ValueError.
std::optional<Cut> sliced(const Cut& base, const std::vector<safemap::Slice>& slices);

/// Returns true if the cut takes whole groups of `grain` elements, each of which fills whole bytes.
bool in_whole_bytes(const Cut& cut, std::int64_t grain);

/// Returns slices for a tensor of `rank` dimensions, mostly valid ones.
std::vector<safemap::Slice> random_slices(std::mt19937_64& random, std::size_t rank);

}  // namespace reference
