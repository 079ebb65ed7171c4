// Conversion kernels: byte order, lazy bits (conj, neg), and casts between floating-point dtypes.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Returns true if there are casts from and to the dtype: F64, F32, F16, BF16, F8_E4M3, F8_E5M2 and the FNUZ forms.
/// F8_E8M0 has none: it holds scales, not values. Integers and booleans have none either.
bool is_castable(Dtype dtype) noexcept;

/// The instruction set that loops are compiled for. It does not change results.
enum class Vectors { baseline, avx2 };

/// Returns the widest set that this processor has.
Vectors widest_vectors() noexcept;

/// Statistics of a cast. No value counts in both.
struct ConvertCounts {
    std::uint64_t overflowed = 0;  ///< finite before, beyond the range of the new dtype, whatever it became
    std::uint64_t non_finite = 0;  ///< NaN or infinite before
};

/// Converts elements one by one, rounding to nearest, ties to even. Results are those of torch 2.13, bit for bit.
///
/// Values beyond the range, and infinity, become infinity if the dtype has one; 448, the largest value, in F8_E4M3; NaN
/// in the FNUZ dtypes, where negative zero becomes zero. F64 is rounded to F32 first, as in torch.
/// NaN stays NaN, with these bits:
/// - BF16: 0x7FC0
/// - F8_E4M3 and F8_E5M2: 0x7F with the sign
/// - FNUZ dtypes: 0x80
/// - F16, F32 and F64: quiet, with the upper bits of the payload. Exceptions for F32: the bits of a BF16 unchanged, and
///   0x7F800001 from FNUZ dtypes.
/// (In torch, the bits of a NaN vary with the processor and the position in the tensor from F32 and F64 to BF16, from
/// all except F32 to F16, and from signalling NaNs of F16.)
///
/// `out` must not overlap `in`; both hold the same number of elements, at any alignment. Requires is_castable(from) and
/// is_castable(to), or from == to. Rounds as above only in the rounding mode that a program starts with.
ConvertCounts convert(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out,
                      Vectors vectors = widest_vectors());

/// Reverses the bytes of each group of `size` (1, 2, 4, 8).
void byte_swap(std::span<std::byte> bytes, unsigned size) noexcept;

/// Changes the sign of each imaginary part. Does nothing for dtypes that are not complex.
void conjugate(Dtype dtype, std::span<std::byte> bytes) noexcept;

/// Changes the sign of each element of real, complex and integer dtypes.
void negate(Dtype dtype, std::span<std::byte> bytes) noexcept;

}  // namespace safemap::SAFEMAP_ABI
