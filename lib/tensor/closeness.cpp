// Compares numbers. All dtypes except integers are converted to F64, which is exact, a few hundred numbers at a time.
#include "tensor/closeness.hpp"

#include "tensor/convert.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/elements.hpp>
#include <safemap/float_types.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace safemap::SAFEMAP_ABI {

namespace {

/// The dtype of the parts of an element, and their number.
struct Parts {
    Dtype dtype;
    unsigned count = 1;
};

Parts parts_of(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::c32: return {Dtype::f16, 2};
        case Dtype::c64: return {Dtype::f32, 2};
        case Dtype::c128: return {Dtype::f64, 2};
        default: return {dtype};
    }
}

bool is_integer(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::u8:
        case Dtype::i8:
        case Dtype::u16:
        case Dtype::i16:
        case Dtype::u32:
        case Dtype::i32:
        case Dtype::u64:
        case Dtype::i64: return true;
        default: return false;
    }
}

/// Returns true for floating-point dtypes that have no casts.
bool is_small_float(Dtype dtype) noexcept {
    return dtype == Dtype::f4 || dtype == Dtype::f6_e2m3 || dtype == Dtype::f6_e3m2 || dtype == Dtype::f8_e8m0;
}

class Comparison {
public:
    Comparison(double atol, double rtol) : atol_(atol), rtol_(rtol) {}

    void floats(std::uint64_t number, double a, double b) {
        if (a == b || (std::isnan(a) && std::isnan(b))) return;
        const double difference = std::abs(a - b);
        const bool finite = std::isfinite(a) && std::isfinite(b);
        add(number, difference, finite && difference <= limit(b));
    }

    template <class T> void integers(std::uint64_t number, T a, T b) {
        if (a == b) return;
        const auto [small, large] = std::minmax(a, b);
        const std::uint64_t difference = static_cast<std::uint64_t>(large) - static_cast<std::uint64_t>(small);
        const double most = limit(static_cast<double>(b));
        constexpr double beyond = 18446744073709551616.0;  // 2^64
        add(number, static_cast<double>(difference), most >= beyond || difference <= static_cast<std::uint64_t>(most));
    }

    Closeness result;

private:
    double limit(double b) const { return atol_ + rtol_ * std::abs(b); }

    void add(std::uint64_t number, double difference, bool close) {
        // The negated <= is true for a NaN. Once the maximum is a NaN, it stays.
        if (!(difference <= result.max_abs) && !std::isnan(result.max_abs)) result.max_abs = difference;
        if (!close && !result.first_apart) result.first_apart = number;
    }

    double atol_;
    double rtol_;
};

template <class T>
void each_integer(std::span<const std::byte> a, std::span<const std::byte> b, Comparison& comparison) {
    const auto count = static_cast<std::int64_t>(a.size() / sizeof(T));
    for (std::int64_t i = 0; i < count; ++i)
        comparison.integers(static_cast<std::uint64_t>(i), detail::read_element<T>(a.data(), i),
                            detail::read_element<T>(b.data(), i));
}

void integers(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b, Comparison& comparison) {
    switch (dtype) {
        case Dtype::u8: return each_integer<std::uint8_t>(a, b, comparison);
        case Dtype::i8: return each_integer<std::int8_t>(a, b, comparison);
        case Dtype::u16: return each_integer<std::uint16_t>(a, b, comparison);
        case Dtype::i16: return each_integer<std::int16_t>(a, b, comparison);
        case Dtype::u32: return each_integer<std::uint32_t>(a, b, comparison);
        case Dtype::i32: return each_integer<std::int32_t>(a, b, comparison);
        case Dtype::u64: return each_integer<std::uint64_t>(a, b, comparison);
        case Dtype::i64: return each_integer<std::int64_t>(a, b, comparison);
        default: return;
    }
}

constexpr std::uint64_t chunk = 512;  // a multiple of the elements that fill whole bytes in packed dtypes
using Chunk = std::array<double, chunk>;

template <class T> void read_small(const std::byte* from, std::span<double> into) {
    for (std::size_t i = 0; i < into.size(); ++i)
        into[i] = static_cast<float>(detail::read_element<T>(from, static_cast<std::int64_t>(i)));
}

void to_doubles(Dtype dtype, std::span<const std::byte> from, std::span<double> into) {
    switch (dtype) {
        case Dtype::f4: return read_small<f4>(from.data(), into);
        case Dtype::f6_e2m3: return read_small<f6_e2m3>(from.data(), into);
        case Dtype::f6_e3m2: return read_small<f6_e3m2>(from.data(), into);
        case Dtype::f8_e8m0: return read_small<f8_e8m0>(from.data(), into);
        default: convert(dtype, from, Dtype::f64, std::as_writable_bytes(into));
    }
}

void floats(Parts parts, std::span<const std::byte> a, std::span<const std::byte> b, Comparison& comparison) {
    const std::uint64_t count = std::uint64_t{a.size()} * 8 / bits(parts.dtype);
    Chunk of_a;
    Chunk of_b;
    for (std::uint64_t done = 0; done < count; done += chunk) {
        const auto numbers = static_cast<std::size_t>(std::min(chunk, count - done));
        const auto begin = static_cast<std::size_t>(done * bits(parts.dtype) / 8);
        const auto size = static_cast<std::size_t>((numbers * bits(parts.dtype) + 7) / 8);
        to_doubles(parts.dtype, a.subspan(begin, size), std::span(of_a).first(numbers));
        to_doubles(parts.dtype, b.subspan(begin, size), std::span(of_b).first(numbers));
        for (std::size_t i = 0; i < numbers; ++i) comparison.floats((done + i) / parts.count, of_a[i], of_b[i]);
    }
}

}  // namespace

bool has_numbers(Dtype dtype) noexcept {
    return is_integer(dtype) || is_small_float(dtype) || is_castable(parts_of(dtype).dtype);
}

Closeness compare_numbers(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b, double atol,
                          double rtol) {
    Comparison comparison(atol, rtol);
    if (is_integer(dtype)) integers(dtype, a, b, comparison);
    else floats(parts_of(dtype), a, b, comparison);
    return comparison.result;
}

}  // namespace safemap::SAFEMAP_ABI
