// The small floating-point types as value types: what TensorView gives for BF16, F16, C32 and the F8, F6 and F4 dtypes.
// They hold bits and convert to float exactly; arithmetic is done in float.
#pragma once

#include <safemap/api.hpp>

#include <bit>
#include <complex>
#include <cstdint>

namespace safemap::SAFEMAP_ABI {

namespace detail {

// Decodes sign, exponent and mantissa bits. Every format here embeds in float exactly, subnormals included.
// `fnuz` formats have no infinities, no negative zero, and NaN at the sign bit alone; `no_inf` formats
// (F8_E4M3, the OCP "fn" type) have NaN only where all bits below the sign are set; `finite` ones have neither.
enum class Specials : std::uint8_t { ieee, no_inf, fnuz, finite };

template <unsigned exponent_bits, unsigned mantissa_bits, int bias, Specials specials>
constexpr float decode(std::uint32_t raw) noexcept {
    constexpr std::uint32_t sign_bit = 1U << (exponent_bits + mantissa_bits);
    constexpr std::uint32_t exponent_max = (1U << exponent_bits) - 1;
    constexpr std::uint32_t mantissa_max = (1U << mantissa_bits) - 1;
    const std::uint32_t sign = (raw & sign_bit) != 0 ? 0x8000'0000U : 0;
    const std::uint32_t exponent = (raw >> mantissa_bits) & exponent_max;
    const std::uint32_t mantissa = raw & mantissa_max;
    const auto from_bits = [](std::uint32_t b) { return std::bit_cast<float>(b); };

    if (specials == Specials::fnuz && raw == sign_bit) return from_bits(0x7FC0'0000U);
    if (specials == Specials::no_inf && exponent == exponent_max && mantissa == mantissa_max)
        return from_bits(sign | 0x7FC0'0000U);
    if (specials == Specials::ieee && exponent == exponent_max)
        return from_bits(sign | 0x7F80'0000U | (mantissa << (23 - mantissa_bits)));
    if (exponent == 0) {
        constexpr int smallest = 1 - bias - static_cast<int>(mantissa_bits);  // of one unit in the last place
        float unit = 1.0F;
        for (int i = 0; i < -smallest; ++i) unit *= 0.5F;
        const float magnitude = static_cast<float>(mantissa) * unit;
        return sign != 0 ? -magnitude : magnitude;
    }
    const auto wide = static_cast<std::uint32_t>(static_cast<int>(exponent) - bias + 127);
    return from_bits(sign | (wide << 23) | (mantissa << (23 - mantissa_bits)));
}

}  // namespace detail

/// The upper half of an F32.
struct bf16 {
    std::uint16_t bits = 0;
    constexpr operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE 754 binary16.
struct f16 {
    std::uint16_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<5, 10, 15, detail::Specials::ieee>(bits); }
};

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
