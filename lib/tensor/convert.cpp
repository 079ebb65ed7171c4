// Casts elements. Every dtype is decoded to F32 and encoded from F32, one block at a time, by loops without branches
// that the compiler vectorises. From top to bottom:
//   1. Small, Bf16: the formats, with decode() and encode() of one value.
//   2. decode_all(), encode_all(), cast_all(): loops over a block.
//   3. Codec, wide(), codec_of(): the pair of loops for a dtype, for the baseline or for AVX2.
//   4. count_from(), count_non_finite_f64(): count values that overflow or are not finite.
//   5. swap_words(), flip_signs(), negate_words(): byte order and signs.
//   6. convert() and the other public functions. convert(): stored bytes -> decode -> F32 block -> encode ->
//      output; the F32 block is also counted.
#include "tensor/convert.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace safemap::SAFEMAP_ABI {
namespace {

template <class T> T load(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

template <class T> void store(std::byte* to, T value) noexcept { std::memcpy(to, &value, sizeof(T)); }

// Without its sign, the bits of an F32 are ordered and fit in an int32, the only integers that SSE2 can compare.
constexpr std::int32_t f32_infinity = 0x7F80'0000;

constexpr std::int32_t without_sign(std::uint32_t f32) noexcept {
    return static_cast<std::int32_t>(f32 & 0x7FFF'FFFFU);
}

// The result for values beyond the range. It decides which bits are not numbers: infinity and above; all bits except
// the sign set; or negative zero alone.
enum class Beyond { infinity, largest, nan };

template <class Bits, unsigned exponent_bits, unsigned mantissa_bits, int bias, Beyond beyond> struct Small {
    using Stored = Bits;

    static constexpr unsigned width = 8 * sizeof(Bits);
    static constexpr unsigned dropped = 23 - mantissa_bits;
    static constexpr std::uint32_t sign_bit = 1U << (width - 1);
    static constexpr std::uint32_t all_ones = sign_bit - 1;
    static constexpr std::uint32_t infinity = all_ones >> mantissa_bits << mantissa_bits;
    static constexpr std::uint32_t largest = beyond == Beyond::infinity  ? infinity - 1
                                             : beyond == Beyond::largest ? all_ones - 1
                                                                         : all_ones;
    // The following are bits of an F32.
    static constexpr std::int32_t one_exponent = 1 << 23;
    static constexpr std::int32_t rebias = (127 - bias) * one_exponent;
    static constexpr std::int32_t smallest_normal = rebias + one_exponent;
    // The first value that rounds beyond the largest one: half way to the next one, or just above that if the largest
    // is even.
    static constexpr std::int32_t overflow =
        rebias + static_cast<std::int32_t>((largest << dropped) + (1U << (dropped - 1)) + (largest % 2 == 0 ? 1 : 0));
    // The value that rounds to the result for everything beyond the range: infinity, the largest, or the NaN, which
    // follows the largest.
    static constexpr std::int32_t cap = beyond == Beyond::largest ? overflow - 1 : overflow;

    static std::uint32_t decode(Bits stored) noexcept {
        const std::uint32_t raw = stored & all_ones;
        const std::uint32_t sign = (stored & sign_bit) << (32 - width);
        const auto magnitude = static_cast<std::int32_t>(raw << dropped);
        // A subnormal is its mantissa after the smallest exponent, minus the hidden bit.
        const bool subnormal = magnitude < one_exponent;
        const std::int32_t rebiased = magnitude + rebias + (subnormal ? one_exponent : 0);
        const std::int32_t hidden = subnormal ? smallest_normal : 0;
        const std::uint32_t number =
            sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(rebiased) - std::bit_cast<float>(hidden));
        if constexpr (beyond == Beyond::nan) return stored == sign_bit ? 0x7F80'0001U : number;
        if constexpr (beyond == Beyond::largest) return number | (raw == all_ones ? f32_infinity : 0);
        return number | (raw >= infinity ? f32_infinity : 0) | (raw > infinity ? 0x40'0000U : 0);  // quiet, as F16C
    }

    static std::uint32_t encode(std::uint32_t f32) noexcept {
        const std::int32_t magnitude = without_sign(f32);
        const std::uint32_t sign = f32 >> 31 << (width - 1);
        const std::uint32_t rounded = round(std::min(magnitude, cap));
        if constexpr (beyond == Beyond::nan) return rounded == 0 ? 0 : sign | rounded;
        return sign | rounded | (magnitude > f32_infinity ? nan(f32) : 0);
    }

    // Rounds to nearest, ties to even, by a float addition: next to a power of two that is larger by `dropped`
    // exponents, the dropped bits do not fit. The sum exceeds that power by the mantissa with its hidden bit, which
    // counts as one exponent.
    static std::uint32_t round(std::int32_t magnitude) noexcept {
        const std::int32_t exponent = std::max(magnitude, smallest_normal) & f32_infinity;
        const std::int32_t larger = exponent + static_cast<std::int32_t>(dropped) * one_exponent;
        const auto sum = std::bit_cast<std::int32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(larger));
        return static_cast<std::uint32_t>(sum - larger + ((exponent - smallest_normal) >> dropped));
    }

    // Keeps the upper bits of the payload if the format has room for them, as F16C does.
    static std::uint32_t nan(std::uint32_t f32) noexcept {
        if constexpr (width == 8) return all_ones;
        return 1U << (mantissa_bits - 1) | ((f32 >> dropped) & ((1U << mantissa_bits) - 1));
    }
};

// The upper half of an F32. It needs no rebias, and its subnormals round as its normals do.
struct Bf16 {
    using Stored = std::uint16_t;
    static constexpr std::int32_t overflow = 0x7F7F'8000;

    static std::uint32_t decode(std::uint16_t stored) noexcept { return std::uint32_t{stored} << 16; }

    static std::uint32_t encode(std::uint32_t f32) noexcept {
        const std::uint32_t rounded = (f32 + 0x7FFFU + ((f32 >> 16) & 1U)) >> 16;
        return without_sign(f32) > f32_infinity ? 0x7FC0U : rounded;
    }
};

using F16 = Small<std::uint16_t, 5, 10, 15, Beyond::infinity>;
using F8E4m3 = Small<std::uint8_t, 4, 3, 7, Beyond::largest>;
using F8E5m2 = Small<std::uint8_t, 5, 2, 15, Beyond::infinity>;
using F8E4m3fnuz = Small<std::uint8_t, 4, 3, 8, Beyond::nan>;
using F8E5m2fnuz = Small<std::uint8_t, 5, 2, 16, Beyond::nan>;

// Number of values per block. As F32, a block fits into the L1 cache.
constexpr std::size_t block = 1024;

template <class Format>
void decode_all(const std::byte* __restrict in, std::byte* __restrict f32, std::size_t count) noexcept {
    using Stored = typename Format::Stored;
    for (std::size_t i = 0; i < count; ++i) store(f32 + 4 * i, Format::decode(load<Stored>(in + i * sizeof(Stored))));
}

// Two loops: with one, GCC narrows every part of the encoding instead of only the result, which takes 1.5 times as
// long.
template <class Format>
void encode_all(const std::byte* __restrict f32, std::byte* __restrict out, std::size_t count) noexcept {
    using Stored = typename Format::Stored;
    std::array<std::uint32_t, block> encoded;
    for (std::size_t i = 0; i < count; ++i) encoded[i] = Format::encode(load<std::uint32_t>(f32 + 4 * i));
    for (std::size_t i = 0; i < count; ++i) store(out + i * sizeof(Stored), static_cast<Stored>(encoded[i]));
}

// One loop: the work is too small for two.
template <>
void encode_all<Bf16>(const std::byte* __restrict f32, std::byte* __restrict out, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        store(out + 2 * i, static_cast<std::uint16_t>(Bf16::encode(load<std::uint32_t>(f32 + 4 * i))));
}

template <class From, class To>
void cast_all(const std::byte* __restrict in, std::byte* __restrict out, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        store(out + i * sizeof(To), static_cast<To>(load<From>(in + i * sizeof(From))));
}

// The loops for at most one block, to and from F32; null for F32 itself.
struct Codec {
    using Loop = void (*)(const std::byte* in, std::byte* out, std::size_t count) noexcept;

    Loop decode = nullptr;
    Loop encode = nullptr;
    std::int32_t overflow = 0;  // the first F32 that overflows; 0 for dtypes without casts
};

// Compiles a loop again for processors with AVX2: twice as fast if a value needs much work. convert() chooses, not
// target_clones: its resolvers run before a sanitizer is ready.
#if defined(__x86_64__)
#define SAFEMAP_AVX2 [[gnu::target("avx2"), gnu::flatten]]
#else
#define SAFEMAP_AVX2
#endif
template <Codec::Loop loop> SAFEMAP_AVX2 void wide(const std::byte* in, std::byte* out, std::size_t count) noexcept {
    loop(in, out, count);
}

template <Codec::Loop decode, Codec::Loop encode> Codec codec(Vectors vectors, std::int32_t overflow) noexcept {
    if (vectors == Vectors::avx2) return {wide<decode>, wide<encode>, overflow};
    return {decode, encode, overflow};
}

template <class Format> Codec codec(Vectors vectors) noexcept {
    return codec<decode_all<Format>, encode_all<Format>>(vectors, Format::overflow);
}

Codec codec_of(Dtype dtype, Vectors vectors) noexcept {
    switch (dtype) {
        case Dtype::f64: return codec<cast_all<double, float>, cast_all<float, double>>(vectors, f32_infinity);
        case Dtype::f32: return {.overflow = f32_infinity};
        case Dtype::f16: return codec<F16>(vectors);
        case Dtype::bf16: return codec<Bf16>(vectors);
        case Dtype::f8_e4m3: return codec<F8E4m3>(vectors);
        case Dtype::f8_e5m2: return codec<F8E5m2>(vectors);
        case Dtype::f8_e4m3fnuz: return codec<F8E4m3fnuz>(vectors);
        case Dtype::f8_e5m2fnuz: return codec<F8E5m2fnuz>(vectors);
        default: return {};
    }
}

// Returns how many values have a magnitude of `least` or more.
std::uint32_t count_from(const std::byte* f32, std::size_t count, std::int32_t least) noexcept {
    std::uint32_t found = 0;
    for (std::size_t i = 0; i < count; ++i)
        found += static_cast<std::uint32_t>(without_sign(load<std::uint32_t>(f32 + 4 * i)) >= least);
    return found;
}

std::uint32_t count_non_finite_f64(const std::byte* f64, std::size_t count) noexcept {
    constexpr std::uint64_t infinity = 0x7FF0'0000'0000'0000;
    std::uint32_t found = 0;
    for (std::size_t i = 0; i < count; ++i)
        found += static_cast<std::uint32_t>((load<std::uint64_t>(f64 + 8 * i) & infinity) == infinity);
    return found;
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

bool is_castable(Dtype dtype) noexcept { return codec_of(dtype, Vectors::baseline).overflow != 0; }

Vectors widest_vectors() noexcept {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return Vectors::avx2;
#endif
    return Vectors::baseline;
}

ConvertCounts convert(Dtype from, std::span<const std::byte> in, Dtype to, std::span<std::byte> out, Vectors vectors) {
    if (from == to) {
        if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
        return {};
    }
    const Codec source = codec_of(from, vectors);
    const Codec target = codec_of(to, vectors);
    const std::size_t from_size = element_size(from);
    const std::size_t to_size = element_size(to);
    const std::size_t count = in.size() / from_size;

    alignas(64) std::array<std::byte, 4 * block> between;
    ConvertCounts counts;
    for (std::size_t done = 0; done < count; done += block) {
        const std::size_t size = std::min(block, count - done);
        const std::byte* const stored = in.data() + done * from_size;
        std::byte* const converted = out.data() + done * to_size;

        const std::byte* f32 = stored;
        if (source.decode != nullptr) {
            std::byte* const decoded = target.encode != nullptr ? between.data() : converted;
            source.decode(stored, decoded, size);
            f32 = decoded;
        }
        if (target.encode != nullptr) target.encode(f32, converted, size);

        const std::uint32_t beyond = count_from(f32, size, target.overflow);
        if (beyond == 0) continue;
        const std::uint32_t non_finite =
            from == Dtype::f64 ? count_non_finite_f64(stored, size) : count_from(f32, size, f32_infinity);
        counts.overflowed += beyond - non_finite;
        counts.non_finite += non_finite;
    }
    return counts;
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

}  // namespace safemap::SAFEMAP_ABI
