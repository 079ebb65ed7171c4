// Formats elements of each dtype.
#include "tensor/element_text.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/elements.hpp>
#include <safemap/float_types.hpp>

#include <charconv>
#include <cmath>
#include <complex>
#include <type_traits>

namespace safemap::SAFEMAP_ABI {
namespace {

std::string bits_text(const std::byte* first, std::size_t size) {
    constexpr char digits[] = "0123456789abcdef";
    std::string text = "0x";
    for (std::size_t i = size; i-- > 0;) {
        const auto byte = std::to_integer<unsigned>(first[i]);
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

template <class Number> std::string number_text(Number number, int digits) {
    char text[32];
    char* const end = text + sizeof text;
    if constexpr (std::is_floating_point_v<Number>) {
        if (std::isnan(number)) return "nan";
        if (digits > 0) return {text, std::to_chars(text, end, number, std::chars_format::general, digits).ptr};
    }
    return {text, std::to_chars(text, end, number).ptr};
}

template <class Number> std::string complex_text(std::complex<Number> number, int digits) {
    const std::string imaginary = number_text(number.imag(), digits);
    return number_text(number.real(), digits) + (imaginary.front() == '-' ? "" : "+") + imaginary + 'j';
}

/// Formats an element of T, which is a number or converts exactly to one.
template <class T> std::string text_of(const std::byte* base, std::int64_t number, int digits) {
    const T value = detail::read_element<T>(base, number);
    if constexpr (std::is_arithmetic_v<T>) return number_text(value, digits);
    else if constexpr (std::is_same_v<T, c32>) return complex_text(static_cast<std::complex<float>>(value), digits);
    else if constexpr (requires { value.bits; }) return number_text(static_cast<float>(value), digits);
    else return complex_text(value, digits);
}

std::string boolean_text(const std::byte* base, std::int64_t number) {
    const std::byte value = base[number];
    return value == std::byte{0} ? "false" : value == std::byte{1} ? "true" : bits_text(&value, 1);
}

}  // namespace

std::string element_text(Dtype dtype, const std::byte* base, std::int64_t number, int digits) {
    switch (dtype) {
        case Dtype::boolean: return boolean_text(base, number);
        case Dtype::u8: return text_of<std::uint8_t>(base, number, digits);
        case Dtype::i8: return text_of<std::int8_t>(base, number, digits);
        case Dtype::u16: return text_of<std::uint16_t>(base, number, digits);
        case Dtype::i16: return text_of<std::int16_t>(base, number, digits);
        case Dtype::u32: return text_of<std::uint32_t>(base, number, digits);
        case Dtype::i32: return text_of<std::int32_t>(base, number, digits);
        case Dtype::u64: return text_of<std::uint64_t>(base, number, digits);
        case Dtype::i64: return text_of<std::int64_t>(base, number, digits);
        case Dtype::f4: return text_of<f4>(base, number, digits);
        case Dtype::f6_e2m3: return text_of<f6_e2m3>(base, number, digits);
        case Dtype::f6_e3m2: return text_of<f6_e3m2>(base, number, digits);
        case Dtype::f8_e5m2: return text_of<f8_e5m2>(base, number, digits);
        case Dtype::f8_e4m3: return text_of<f8_e4m3>(base, number, digits);
        case Dtype::f8_e8m0: return text_of<f8_e8m0>(base, number, digits);
        case Dtype::f8_e4m3fnuz: return text_of<f8_e4m3fnuz>(base, number, digits);
        case Dtype::f8_e5m2fnuz: return text_of<f8_e5m2fnuz>(base, number, digits);
        case Dtype::f16: return text_of<f16>(base, number, digits);
        case Dtype::bf16: return text_of<bf16>(base, number, digits);
        case Dtype::f32: return text_of<float>(base, number, digits);
        case Dtype::f64: return text_of<double>(base, number, digits);
        case Dtype::c32: return text_of<c32>(base, number, digits);
        case Dtype::c64: return text_of<std::complex<float>>(base, number, digits);
        case Dtype::c128: return text_of<std::complex<double>>(base, number, digits);
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
    const unsigned size = element_size(dtype);
    return bits_text(base + number * static_cast<std::int64_t>(size), size);
}

std::string element_bits(std::span<const std::byte> element) { return bits_text(element.data(), element.size()); }

}  // namespace safemap::SAFEMAP_ABI
