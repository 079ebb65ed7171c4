// Casts, one kernel for each pair of dtypes, made from one decoder and one encoder for each dtype. The compiler
// vectorises the loops over F32 and BF16; tests/tensor/convert_test.cpp holds every kernel against a slow twin.
#include "tensor/convert.hpp"

#include <safemap/float_types.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace safemap {
namespace {

// What encodes a float or double into a small format: its fields, and what stands for values beyond its range.
enum class Overflow { infinity, largest, nan };

template <class Bits, unsigned exponent_bits, unsigned mantissa_bits, int bias, Overflow overflow> struct Encoder {
    static constexpr std::uint64_t sign_bit = 1ULL << (exponent_bits + mantissa_bits);
    static constexpr std::uint64_t all_ones = sign_bit - 1;
    static constexpr std::uint64_t infinity = ((1ULL << exponent_bits) - 1) << mantissa_bits;
    static constexpr std::uint64_t largest = overflow == Overflow::infinity  ? infinity - 1
                                             : overflow == Overflow::largest ? all_ones - 1
                                                                             : all_ones;

    template <class Float> static Bits encode(Float value, ConvertCounts& counts) noexcept {
        using Wide = std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>;
        constexpr unsigned wide_mantissa = sizeof(Float) == 8 ? 52 : 23;
        constexpr int wide_bias = sizeof(Float) == 8 ? 1023 : 127;
        constexpr unsigned wide_exponent_max = sizeof(Float) == 8 ? 0x7FF : 0xFF;

        const auto raw = std::bit_cast<Wide>(value);
        const bool negative = raw >> (8 * sizeof(Float) - 1) != 0;
        const auto wide_exponent = static_cast<unsigned>(raw >> wide_mantissa) & wide_exponent_max;
        std::uint64_t mantissa = raw & ((Wide{1} << wide_mantissa) - 1);

        if (wide_exponent == wide_exponent_max) {
            ++counts.non_finite;
            return mantissa != 0 ? nan(negative) : beyond(negative);
        }
        if (wide_exponent != 0) mantissa |= 1ULL << wide_mantissa;
        const int exponent = static_cast<int>(std::max(wide_exponent, 1U)) - wide_bias + bias;
        // Below the smallest exponent the mantissa loses further bits; from 63 on nothing is left of it.
        const unsigned shift =
            std::min(63U, wide_mantissa - mantissa_bits + static_cast<unsigned>(std::max(1 - exponent, 0)));
        std::uint64_t magnitude = round_shift(mantissa, shift);
        // The mantissa's hidden bit, still in place, counts for one exponent.
        if (exponent > 1) magnitude += static_cast<std::uint64_t>(exponent - 1) << mantissa_bits;
        if (magnitude > largest) {
            ++counts.overflowed;
            return beyond(negative);
        }
        return signed_bits(magnitude, negative);
    }

private:
    // mantissa / 2^shift, to the nearest, ties to even.
    static std::uint64_t round_shift(std::uint64_t mantissa, unsigned shift) noexcept {
        if (shift == 0) return mantissa;
        const std::uint64_t whole = mantissa >> shift;
        const std::uint64_t rest = mantissa & ((1ULL << shift) - 1);
        const std::uint64_t half = 1ULL << (shift - 1);
        return whole + (rest > half || (rest == half && (whole & 1) != 0) ? 1 : 0);
    }

    static Bits signed_bits(std::uint64_t magnitude, bool negative) noexcept {
        if (overflow == Overflow::nan && magnitude == 0) return 0;  // FNUZ: no negative zero
        return static_cast<Bits>(magnitude | (negative ? sign_bit : 0));
    }

    static Bits beyond(bool negative) noexcept {
        if (overflow == Overflow::nan) return static_cast<Bits>(sign_bit);
        return signed_bits(overflow == Overflow::infinity ? infinity : largest, negative);
    }

    static Bits nan(bool negative) noexcept {
        if (overflow == Overflow::nan) return static_cast<Bits>(sign_bit);
        if (overflow == Overflow::largest) return signed_bits(all_ones, negative);
        return signed_bits(infinity | (1ULL << (mantissa_bits - 1)), negative);
    }
};

template <class T> struct EncoderOf;
template <> struct EncoderOf<bf16> : Encoder<std::uint16_t, 8, 7, 127, Overflow::infinity> {};
template <> struct EncoderOf<f16> : Encoder<std::uint16_t, 5, 10, 15, Overflow::infinity> {};
template <> struct EncoderOf<f8_e4m3> : Encoder<std::uint8_t, 4, 3, 7, Overflow::largest> {};
template <> struct EncoderOf<f8_e5m2> : Encoder<std::uint8_t, 5, 2, 15, Overflow::infinity> {};
template <> struct EncoderOf<f8_e4m3fnuz> : Encoder<std::uint8_t, 4, 3, 8, Overflow::nan> {};
template <> struct EncoderOf<f8_e5m2fnuz> : Encoder<std::uint8_t, 5, 2, 16, Overflow::nan> {};

// The type that holds every value of T exactly and that encoders take.
template <class T> using WideOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class To, class From> To convert_one(From value, ConvertCounts& counts) noexcept {
    const auto wide = static_cast<WideOf<From>>(value);
    if constexpr (std::is_floating_point_v<To>) {
        const To out = static_cast<To>(wide);
        const bool finite = std::isfinite(wide);
        counts.non_finite += finite ? 0U : 1U;
        counts.overflowed += finite && !std::isfinite(out) ? 1U : 0U;
        return out;
    } else {
        return To{EncoderOf<To>::encode(wide, counts)};
    }
}

template <class From, class To> ConvertCounts convert_all(const std::byte* in, std::byte* out, std::size_t count) {
    ConvertCounts counts;
    for (std::size_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, in + i * sizeof(From), sizeof(From));
        const To converted = convert_one<To>(value, counts);
        std::memcpy(out + i * sizeof(To), &converted, sizeof(To));
    }
    return counts;
}

// The cast that models are saved with, without a branch so that it is vectorised: adds half of the last place, and
// one less for even values, to the bits that fall away.
template <> ConvertCounts convert_all<float, bf16>(const std::byte* in, std::byte* out, std::size_t count) {
    constexpr std::size_t block = 4096;  // counters of 32 bits cannot overflow within one
    ConvertCounts counts;
    for (std::size_t done = 0; done < count; done += block) {
        const std::size_t end = std::min(count, done + block);
        std::uint32_t overflowed = 0;
        std::uint32_t non_finite = 0;
        for (std::size_t i = done; i < end; ++i) {
            std::uint32_t raw;
            std::memcpy(&raw, in + i * 4, 4);
            const std::uint32_t magnitude = raw & 0x7FFF'FFFFU;
            const std::uint32_t rounded = (raw + 0x7FFFU + ((raw >> 16) & 1U)) >> 16;
            const std::uint32_t quiet = (raw >> 16) | 0x40U;
            const bool is_nan = magnitude > 0x7F80'0000U;
            const bool is_finite = magnitude < 0x7F80'0000U;
            const auto bits = static_cast<std::uint16_t>(is_nan ? quiet : rounded);
            overflowed += static_cast<std::uint32_t>(is_finite && (rounded & 0x7FFFU) >= 0x7F80U);
            non_finite += static_cast<std::uint32_t>(!is_finite);
            std::memcpy(out + i * 2, &bits, 2);
        }
        counts.overflowed += overflowed;
        counts.non_finite += non_finite;
    }
    return counts;
}

using Kernel = ConvertCounts (*)(const std::byte*, std::byte*, std::size_t);

template <class From>
constexpr std::array<Kernel, 8> kernels_from{
    convert_all<From, double>,      convert_all<From, float>,       convert_all<From, f16>,
    convert_all<From, bf16>,        convert_all<From, f8_e4m3>,     convert_all<From, f8_e5m2>,
    convert_all<From, f8_e4m3fnuz>, convert_all<From, f8_e5m2fnuz>,
};

constexpr std::array<std::array<Kernel, 8>, 8> kernels{
    kernels_from<double>,  kernels_from<float>,   kernels_from<f16>,         kernels_from<bf16>,
    kernels_from<f8_e4m3>, kernels_from<f8_e5m2>, kernels_from<f8_e4m3fnuz>, kernels_from<f8_e5m2fnuz>,
};

// A dtype's place in the tables above, or -1.
constexpr int kernel_index(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::f64: return 0;
        case Dtype::f32: return 1;
        case Dtype::f16: return 2;
        case Dtype::bf16: return 3;
        case Dtype::f8_e4m3: return 4;
        case Dtype::f8_e5m2: return 5;
        case Dtype::f8_e4m3fnuz: return 6;
        case Dtype::f8_e5m2fnuz: return 7;
        default: return -1;
    }
}

template <class Word> void swap_words(std::span<std::byte> bytes) noexcept {
    for (std::size_t i = 0; i + sizeof(Word) <= bytes.size(); i += sizeof(Word)) {
        Word word;
        std::memcpy(&word, bytes.data() + i, sizeof(Word));
        if constexpr (sizeof(Word) == 2) word = __builtin_bswap16(word);
        if constexpr (sizeof(Word) == 4) word = __builtin_bswap32(word);
        if constexpr (sizeof(Word) == 8) word = __builtin_bswap64(word);
        std::memcpy(bytes.data() + i, &word, sizeof(Word));
    }
}

// Flips the sign bit of every `stride`-th float of `size` bytes, beginning with number `first`.
void flip_signs(std::span<std::byte> bytes, std::size_t size, std::size_t first, std::size_t stride) noexcept {
    for (std::size_t i = first * size; i + size <= bytes.size(); i += stride * size)
        bytes[i + size - 1] ^= std::byte{0x80};
}

template <class Word> void negate_words(std::span<std::byte> bytes) noexcept {
    for (std::size_t i = 0; i + sizeof(Word) <= bytes.size(); i += sizeof(Word)) {
        Word word;
        std::memcpy(&word, bytes.data() + i, sizeof(Word));
        word = static_cast<Word>(0 - word);
        std::memcpy(bytes.data() + i, &word, sizeof(Word));
    }
}

}  // namespace

bool is_castable(Dtype dtype) noexcept { return kernel_index(dtype) >= 0; }

ConvertCounts convert(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out) {
    if (from == to) {
        if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
        return {};
    }
    const auto row = static_cast<std::size_t>(kernel_index(from));
    const auto column = static_cast<std::size_t>(kernel_index(to));
    return kernels[row][column](in.data(), out.data(), in.size() / element_size(from));
}

void byte_swap(std::span<std::byte> bytes, unsigned size) noexcept {
    switch (size) {
        case 2: return swap_words<std::uint16_t>(bytes);
        case 4: return swap_words<std::uint32_t>(bytes);
        case 8: return swap_words<std::uint64_t>(bytes);
        default: return;
    }
}

void conjugate(Dtype dtype, std::span<std::byte> bytes) noexcept {
    if (kind(dtype) == DtypeKind::complex) flip_signs(bytes, element_size(dtype) / 2, 1, 2);
}

void negate(Dtype dtype, std::span<std::byte> bytes) noexcept {
    if (!whole_bytes(dtype)) return;
    if (kind(dtype) == DtypeKind::complex) return flip_signs(bytes, element_size(dtype) / 2, 0, 1);
    if (kind(dtype) == DtypeKind::real) return flip_signs(bytes, element_size(dtype), 0, 1);
    if (kind(dtype) != DtypeKind::integer) return;
    switch (element_size(dtype)) {
        case 1: return negate_words<std::uint8_t>(bytes);
        case 2: return negate_words<std::uint16_t>(bytes);
        case 4: return negate_words<std::uint32_t>(bytes);
        case 8: return negate_words<std::uint64_t>(bytes);
        default: return;
    }
}

}  // namespace safemap
