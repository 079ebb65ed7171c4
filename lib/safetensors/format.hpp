// What reading and writing of headers share: the format's constants, the reference's order, sizes of values.
#pragma once

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::safetensors {

inline constexpr std::string_view reserved_name = "__metadata__";
/// The header's length stands in so many bytes.
inline constexpr std::uint64_t length_bytes = 8;

/// Where the reference's sort puts tensors: dtype descending, then name ascending.
inline bool sorts_before(Dtype dtype_a, std::string_view name_a, Dtype dtype_b, std::string_view name_b) {
    return dtype_a != dtype_b ? dtype_a > dtype_b : name_a < name_b;
}

/// "shape [2, 3] of F32"; of a hostile shape, which may have millions of dimensions, only how many.
std::string kind_text(Dtype dtype, const Shape& shape);
/// Bytes of a value. Throws shape_overflow and partial_byte.
std::uint64_t value_bytes(Dtype dtype, const Shape& shape);

}  // namespace safemap::SAFEMAP_ABI::safetensors
