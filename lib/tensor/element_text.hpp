// One element as a person reads it.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// Element `number`, counted from `base`: "1.5", "-7", "true", "1-2j", "nan". Floating-point numbers with so many
/// digits, or 0 for the shortest text that reads back as the same value. Bits, where the dtype has no numbers of its
/// own, or the value is none of it.
std::string element_text(Dtype dtype, const std::byte* base, std::int64_t number, int digits = 0);
/// "0x7fc00001": its bits as one number.
std::string element_bits(std::span<const std::byte> element);

}  // namespace safemap::SAFEMAP_ABI
