// One element as a person reads it.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace safemap {

/// "1.5", "-7", "true", "1-2j", "nan": the shortest text that reads back as the same value. Bits, where the dtype has
/// no numbers of its own. `element` has the bytes of one element; of a sub-byte dtype, one byte with its bits lowest.
std::string element_text(Dtype dtype, std::span<const std::byte> element);
/// "0x7fc00001": its bits as one number.
std::string element_bits(std::span<const std::byte> element);

}  // namespace safemap
