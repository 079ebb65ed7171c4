// Conversion kernels: byte order, lazy bits, and casts between floating-point dtypes.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap {

/// Whether there are casts from and to it: F64, F32, F16, BF16, F8_E4M3, F8_E5M2 and their FNUZ forms. F8_E8M0 holds
/// scales, not values, and is left alone as integers and booleans are.
bool is_castable(Dtype dtype) noexcept;

/// What a cast met.
struct ConvertCounts {
    std::uint64_t overflowed = 0;  ///< finite, and beyond the range of the new dtype
    std::uint64_t non_finite = 0;  ///< NaN or infinite before
};

/// Converts elements one by one, to the nearest, ties to even; NaN stays NaN. What is beyond the range becomes what
/// torch 2.13 makes of it: infinity where the format has one, the largest value for F8_E4M3, NaN for the FNUZ formats.
/// `out` does not overlap `in`; both hold the same number of elements, at any alignment. is_castable(from)
/// and is_castable(to) hold, or from == to.
ConvertCounts convert(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out);

/// Reverses the bytes of each group of `size` (1, 2, 4, 8).
void byte_swap(std::span<std::byte> bytes, unsigned size) noexcept;

/// Changes the sign of each imaginary part. For complex dtypes; others are left alone.
void conjugate(Dtype dtype, std::span<std::byte> bytes) noexcept;

/// Changes the sign of each element. For real, complex and integer dtypes.
void negate(Dtype dtype, std::span<std::byte> bytes) noexcept;

}  // namespace safemap
