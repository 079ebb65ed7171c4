// The header of a safetensors file, both ways. The file: eight bytes of length (little-endian), that many bytes
// of JSON, the data. docs/format.md draws it.
#pragma once

#include "base/faults.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::safetensors {

/// What is allowed; mirrors the public Policy, which this layer does not know.
enum class Rules : std::uint8_t { compatible, strict, lenient };

struct TensorInfo {
    std::string name;
    Dtype dtype = {};
    Shape shape = {};
    Extent data = {};  ///< in the file, not in the data section
};

struct Header {
    std::vector<TensorInfo> tensors;  ///< by data offset, then in the order of the reference's sort
    std::vector<std::pair<std::string, std::string>> metadata;  ///< sorted by key
    bool has_metadata = false;                                  ///< `__metadata__` is there and not null
    std::uint64_t data_offset = 0;                              ///< 8 + header length
};

/// Reads and validates the header of `source`, and nothing else of it. Rules in the order of the reference
/// implementation (safetensors 0.8): header_too_short, header_too_large, header_past_end, header_not_utf8,
/// header_not_json / header_bad_field / header_bad_metadata / unknown_dtype, then for each tensor by offset
/// offsets_overlap / offsets_leave_gap / offsets_reversed, shape_overflow, partial_byte, size_mismatch, and at the
/// end file_truncated / trailing_bytes. `faults` that return let the rest be checked. Faults carry the tensor's name;
/// the caller adds the path.
Header read_header(const Source& source, Rules rules, std::uint64_t max_header_bytes, FaultSink& faults);

/// What a file is made of, for writing.
struct TensorSpec {
    std::string_view name;
    Dtype dtype = {};
    const Shape* shape = nullptr;
};

/// Where the reference puts tensors: dtype descending in enum order, then name bytes ascending. Indices into
/// `tensors`.
std::vector<std::uint32_t> file_order(std::span<const TensorSpec> tensors);

/// Length, JSON and padding: everything before the data. `tensors` stand in the file in the order given, without
/// gaps; `metadata` as given; the data begins at a multiple of `alignment`. Byte for byte what the reference writes
/// for alignment 8. Throws name_collision (twice the same name, or `__metadata__`), unnamed_dtype, partial_byte,
/// shape_overflow, header_too_large.
std::string write_header(std::span<const TensorSpec> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata, bool with_metadata,
                         std::uint32_t alignment);

}  // namespace safemap::safetensors
