// Multiplies F32 elements by scales: the values of quantised tensors.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Multiplies each F32 of `values` by `scale`, rounding to nearest, as torch does. `values` may have any alignment. A
/// NaN stays the NaN that it is, whatever the scale is, but quiet.
void multiply(std::span<std::byte> values, float scale) noexcept;
/// Multiplies each F32 of `values` by the F32 at the same position of `scales`, which has as many.
void multiply(std::span<std::byte> values, std::span<const std::byte> scales) noexcept;

/// Decodes F8_E8M0, powers of two, to F32. `out` has four bytes for each of `in`. 0xFF is NaN, 0 is the subnormal
/// 2^-127.
void decode_e8m0(std::span<const std::byte> in, std::span<std::byte> out) noexcept;

}  // namespace safemap::SAFEMAP_ABI
