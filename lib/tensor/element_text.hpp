// Formats single elements for people to read.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// Returns element `number`, counted from `base`, as text: "1.5", "-7", "true", "1-2j", "nan". Floating-point numbers
/// have `digits` digits; 0 means the shortest text that reads back as the same value. Returns the bits if the dtype has
/// no numbers, or if the value is invalid for it.
std::string element_text(Dtype dtype, const std::byte* base, std::int64_t number, int digits = 0);
/// Returns the bits of an element as one number: "0x7fc00001".
std::string element_bits(std::span<const std::byte> element);

}  // namespace safemap::SAFEMAP_ABI
