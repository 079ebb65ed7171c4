// Floating-point types of eight bits and less, and torch.complex32, as value types: the element types that TensorView
// uses for the F8, F6 and F4 dtypes and for C32. They hold bits and convert to float exactly; arithmetic is done in
// float.
#pragma once

#include <safemap/float_types.hpp>

#include <bit>
#include <complex>
#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// OCP E4M3, torch.float8_e4m3fn: bias 7, no infinities.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("model.safetensors");
///     safemap::TensorView view = checkpoint["weight"].view();
///     float first = view.unaligned<safemap::f8_e4m3>(0);
struct f8_e4m3 {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept { return detail::decode<4, 3, 7, detail::Specials::no_inf>(bits); }
};

/// OCP E5M2, torch.float8_e5m2: IEEE 754 rules with two mantissa bits.
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

/// OCP E8M0, torch.float8_e8m0fnu: a power of two, 2^(bits - 127); 0xFF is NaN.
struct f8_e8m0 {
    std::uint8_t bits = 0;
    constexpr operator float() const noexcept {
        if (bits == 0xFF) return std::bit_cast<float>(0x7FC0'0000U);
        if (bits == 0) return std::bit_cast<float>(0x0040'0000U);
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 23);
    }
};

/// OCP E3M2: no infinities, no NaN. In a tensor four elements fill three bytes: element i is the bits [6·i, 6·i + 6) of
/// the bytes, counted from the lowest bit of the first byte.
struct f6_e3m2 {
    static constexpr unsigned packed_bits = 6;
    std::uint8_t bits = 0;  ///< the six low bits
    constexpr operator float() const noexcept { return detail::decode<3, 2, 3, detail::Specials::finite>(bits); }
};

/// OCP E2M3: no infinities, no NaN. Packed as f6_e3m2.
struct f6_e2m3 {
    static constexpr unsigned packed_bits = 6;
    std::uint8_t bits = 0;  ///< the six low bits
    constexpr operator float() const noexcept { return detail::decode<2, 3, 1, detail::Specials::finite>(bits); }
};

/// OCP E2M1: no infinities, no NaN; half of a torch.float4_e2m1fn_x2. In a tensor two elements fill a byte; the first
/// is in the four low bits.
struct f4 {
    static constexpr unsigned packed_bits = 4;
    std::uint8_t bits = 0;  ///< the four low bits
    constexpr operator float() const noexcept { return detail::decode<2, 1, 1, detail::Specials::finite>(bits); }
};

/// torch.complex32: two f16.
struct c32 {
    f16 real;
    f16 imag;
    constexpr operator std::complex<float>() const noexcept { return {real, imag}; }
};

}  // namespace safemap::SAFEMAP_ABI
