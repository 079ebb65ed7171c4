// Conversion kernels: byte order, lazy bits, and casts between floating-point dtypes.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Whether there are casts from and to it: F64, F32, F16, BF16, F8_E4M3, F8_E5M2 and their FNUZ forms. F8_E8M0 holds
/// scales, not values, and is left alone as integers and booleans are.
bool is_castable(Dtype dtype) noexcept;

/// What loops are compiled for. The results are the same.
enum class Vectors { baseline, avx2 };

/// The most that this processor has.
Vectors widest_vectors() noexcept;

/// What a cast met. Nothing is counted as both.
struct ConvertCounts {
    std::uint64_t overflowed = 0;  ///< finite, and beyond the range of the new dtype, whatever it became there
    std::uint64_t non_finite = 0;  ///< NaN or infinite before
};

/// Converts elements one by one, to the nearest, ties to even: what torch 2.13 makes of them, bit for bit.
///
/// What is beyond the range, and infinity, becomes infinity where the dtype has one; 448, the largest value, in
/// F8_E4M3; NaN in the FNUZ dtypes, where negative zero becomes zero. F64 is rounded to F32 first, as torch does it.
/// NaN stays NaN: 0x7FC0 in BF16, 0x7F with its sign in F8_E4M3 and F8_E5M2, 0x80 in the FNUZ dtypes, in F16, F32 and
/// F64 quiet with the payload's upper bits; but F32 gets the bits of a BF16 as they are, and 0x7F800001 from the FNUZ
/// dtypes. (Torch's bits of a NaN vary with the processor and the place in the tensor from F32 and F64 to BF16, from
/// all but F32 to F16, and from signalling NaNs of F16.)
///
/// `out` does not overlap `in`; both hold the same number of elements, at any alignment. is_castable(from)
/// and is_castable(to) hold, or from == to. Rounds as above only under the rounding mode that a program starts with.
ConvertCounts convert(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out,
                      Vectors vectors = widest_vectors());

/// Reverses the bytes of each group of `size` (1, 2, 4, 8).
void byte_swap(std::span<std::byte> bytes, unsigned size) noexcept;

/// Changes the sign of each imaginary part. For complex dtypes; others are left alone.
void conjugate(Dtype dtype, std::span<std::byte> bytes) noexcept;

/// Changes the sign of each element. For real, complex and integer dtypes.
void negate(Dtype dtype, std::span<std::byte> bytes) noexcept;

}  // namespace safemap::SAFEMAP_ABI
