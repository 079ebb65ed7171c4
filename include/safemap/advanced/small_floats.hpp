// Floating-point types of eight bits and less, and torch.complex32, as value types: what TensorView gives for the F8,
// F6 and F4 dtypes and C32. They hold bits and convert to float exactly; arithmetic is done in float.
#pragma once

#include <safemap/float_types.hpp>

#include <bit>
#include <complex>
#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// OCP E4M3 without infinities; torch.float8_e4m3fn.
struct f8_e4m3 {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<4, 3, 7, detail::Specials::no_inf>(bits); }
};

/// OCP E5M2, as IEEE with two mantissa bits; torch.float8_e5m2.
struct f8_e5m2 {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<5, 2, 15, detail::Specials::ieee>(bits); }
};

/// torch.float8_e4m3fnuz: bias 8, one NaN (0x80), no infinities, no negative zero.
struct f8_e4m3fnuz {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<4, 3, 8, detail::Specials::fnuz>(bits); }
};

/// torch.float8_e5m2fnuz: bias 16, one NaN (0x80), no infinities, no negative zero.
struct f8_e5m2fnuz {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<5, 2, 16, detail::Specials::fnuz>(bits); }
};

/// OCP E8M0, a power of two: 2^(bits - 127), NaN for 0xFF; torch.float8_e8m0fnu.
struct f8_e8m0 {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept {
        if (bits == 0xFF) return std::bit_cast<float>(0x7FC0'0000U);
        if (bits == 0) return std::bit_cast<float>(0x0040'0000U);
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
    }
};

/// OCP E3M2, without infinities and NaN. In a tensor four elements fill three bytes: element i is the bits
/// [6·i, 6·i + 6) of the bytes, counted from the lowest bit of the first byte on.
struct f6_e3m2 {
    static constexpr unsigned packed_bits = 6;
    std::uint8_t bits = 0;  ///< in the six lower bits
    constexpr operator float() const noexcept { return detail::decode<3, 2, 3, detail::Specials::finite>(bits); }
};

/// OCP E2M3, without infinities and NaN. Packed as f6_e3m2 is.
struct f6_e2m3 {
    static constexpr unsigned packed_bits = 6;
    std::uint8_t bits = 0;  ///< in the six lower bits
    constexpr operator float() const noexcept { return detail::decode<2, 3, 1, detail::Specials::finite>(bits); }
};

/// OCP E2M1, without infinities and NaN; half of a torch.float4_e2m1fn_x2. In a tensor two elements fill a byte, the
/// first of them its four lower bits.
struct f4 {
    static constexpr unsigned packed_bits = 4;
    std::uint8_t bits = 0;  ///< in the four lower bits
    constexpr operator float() const noexcept { return detail::decode<2, 1, 1, detail::Specials::finite>(bits); }
};

/// torch.complex32.
struct c32 {
    f16 real;
    f16 imag;
    constexpr operator std::complex<float>() const noexcept { return {real, imag}; }
};

}  // namespace safemap::SAFEMAP_ABI
