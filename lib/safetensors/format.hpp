// Shared by reading and writing of headers: constants of the format, the order of tensors in the reference
// implementation, sizes of values.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::safetensors {

inline constexpr std::string_view reserved_name = "__metadata__";
/// The size of the field that holds the length of the header.
inline constexpr std::uint64_t length_bytes = 8;

/// Returns true if the reference implementation sorts a before b: dtype descending, then name ascending.
inline bool sorts_before(Dtype dtype_a, std::string_view name_a, Dtype dtype_b, std::string_view name_b) {
    return dtype_a != dtype_b ? dtype_a > dtype_b : name_a < name_b;
}

/// Returns text such as "shape [2, 3] of F32". For more than 16 dimensions only their number: a hostile shape may have
/// millions.
std::string kind_text(Dtype dtype, const Shape& shape);
/// Returns the size of a value in bytes. Throws shape_overflow, partial_byte.
std::uint64_t value_bytes(Dtype dtype, const Shape& shape);

}  // namespace safemap::SAFEMAP_ABI::safetensors
