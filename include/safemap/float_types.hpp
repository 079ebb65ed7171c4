// bf16 and f16, the C++ types of BF16 and F16 elements. advanced/small_floats.hpp has the smaller types.
// They hold bits and convert to float exactly; arithmetic is done in float.
#pragma once

#include <safemap/api.hpp>

#include <bit>
#include <cstdint>

namespace safemap::SAFEMAP_ABI {

namespace detail {

// Special values of a format. The decoder below turns sign, exponent and mantissa bits into a float; every format here
// embeds in float exactly, subnormals included.
// - `fnuz` formats have no infinities and no negative zero; the only NaN has the sign bit alone.
// - `no_inf` formats (F8_E4M3, the OCP "fn" type) have no infinities; a NaN has all bits below the sign set.
// - `finite` formats have neither infinities nor NaN.
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
        constexpr int smallest = 1 - bias - static_cast<int>(mantissa_bits);  // exponent of one unit in the last place
        float unit = 1.0F;
        for (int i = 0; i < -smallest; ++i) unit *= 0.5F;
        const float magnitude = static_cast<float>(mantissa) * unit;
        return sign != 0 ? -magnitude : magnitude;
    }
    const auto wide = static_cast<std::uint32_t>(static_cast<int>(exponent) - bias + 127);
    return from_bits(sign | (wide << 23) | (mantissa << (23 - mantissa_bits)));
}

}  // namespace detail

/// A BF16 element: the upper half of an F32.
///
/// Example:
///     std::span<const safemap::bf16> values = view.as<safemap::bf16>();
///     float sum = 0;
///     for (const safemap::bf16 value : values) sum += value;
struct bf16 {
    std::uint16_t bits = 0;
    constexpr operator float() const noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// An F16 element: IEEE 754 binary16.
struct f16 {
    std::uint16_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<5, 10, 15, detail::Specials::ieee>(bits); }
};

}  // namespace safemap::SAFEMAP_ABI
