// Numbers as text, for each dtype.
#include "tensor/element_text.hpp"

#include <safemap/float_types.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

namespace safemap {
namespace {

template <class Number> std::string number_text(Number number) {
    std::array<char, 32> text;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
    return {text.data(), end};
}

template <class Stored> Stored read(std::span<const std::byte> bytes) {
    Stored value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
}

template <class Integer> std::string integer(std::span<const std::byte> element) {
    return number_text(read<Integer>(element));
}

/// `Stored` converts to `Number` exactly.
template <class Stored, class Number = float> std::string real(std::span<const std::byte> element) {
    return number_text(static_cast<Number>(read<Stored>(element)));
}

template <class Stored, class Number = float> std::string complex(std::span<const std::byte> element) {
    const auto imaginary = static_cast<Number>(read<Stored>(element.subspan(sizeof(Stored))));
    return real<Stored, Number>(element) + (std::signbit(imaginary) ? "" : "+") + number_text(imaginary) + 'j';
}

std::string boolean(std::span<const std::byte> element) {
    const auto value = read<std::uint8_t>(element);
    return value == 0 ? "false" : value == 1 ? "true" : element_bits(element);
}

}  // namespace

std::string element_text(Dtype dtype, std::span<const std::byte> element) {
    switch (dtype) {
        case Dtype::boolean: return boolean(element);
        case Dtype::u8: return integer<std::uint8_t>(element);
        case Dtype::i8: return integer<std::int8_t>(element);
        case Dtype::u16: return integer<std::uint16_t>(element);
        case Dtype::i16: return integer<std::int16_t>(element);
        case Dtype::u32: return integer<std::uint32_t>(element);
        case Dtype::i32: return integer<std::int32_t>(element);
        case Dtype::u64: return integer<std::uint64_t>(element);
        case Dtype::i64: return integer<std::int64_t>(element);
        case Dtype::f4: return real<f4>(element);
        case Dtype::f6_e2m3: return real<f6_e2m3>(element);
        case Dtype::f6_e3m2: return real<f6_e3m2>(element);
        case Dtype::f8_e5m2: return real<f8_e5m2>(element);
        case Dtype::f8_e4m3: return real<f8_e4m3>(element);
        case Dtype::f8_e8m0: return real<f8_e8m0>(element);
        case Dtype::f8_e4m3fnuz: return real<f8_e4m3fnuz>(element);
        case Dtype::f8_e5m2fnuz: return real<f8_e5m2fnuz>(element);
        case Dtype::f16: return real<f16>(element);
        case Dtype::bf16: return real<bf16>(element);
        case Dtype::f32: return real<float>(element);
        case Dtype::f64: return real<double, double>(element);
        case Dtype::c32: return complex<f16>(element);
        case Dtype::c64: return complex<float>(element);
        case Dtype::c128: return complex<double, double>(element);
        case Dtype::qint8:
        case Dtype::quint8:
        case Dtype::qint32:
        case Dtype::quint4x2:
        case Dtype::quint2x4:
        case Dtype::bits8:
        case Dtype::bits16:
        case Dtype::bits1x8:
        case Dtype::bits2x4:
        case Dtype::bits4x2: break;
    }
    return element_bits(element);
}

std::string element_bits(std::span<const std::byte> element) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text = "0x";
    for (std::size_t i = element.size(); i-- > 0;) {
        const auto byte = std::to_integer<unsigned>(element[i]);
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

}  // namespace safemap
