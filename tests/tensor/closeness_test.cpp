// Tests comparisons with a tolerance against a slow reference in long double.
#include "tensor/closeness.hpp"

#include "doctest_safemap.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/elements.hpp>
#include <safemap/float_types.hpp>

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace closeness_test {

using namespace safemap;

namespace {

using Bytes = std::vector<std::byte>;

/// Returns the parts of an element, which long double represents exactly.
template <class T> std::vector<long double> parts(const Bytes& bytes, std::int64_t i) {
    const T value = detail::read_element<T>(bytes.data(), i);
    if constexpr (std::is_arithmetic_v<T>) {
        return {static_cast<long double>(value)};
    } else if constexpr (std::is_same_v<T, c32>) {
        const auto number = static_cast<std::complex<float>>(value);
        return {number.real(), number.imag()};
    } else if constexpr (requires { value.bits; }) {
        return {static_cast<float>(value)};
    } else {
        return {value.real(), value.imag()};
    }
}

template <class T> Closeness slow(const Bytes& a, const Bytes& b, std::int64_t count, double atol, double rtol) {
    Closeness result;
    for (std::int64_t i = 0; i < count; ++i) {
        const auto of_a = parts<T>(a, i);
        const auto of_b = parts<T>(b, i);
        bool close = true;
        for (std::size_t part = 0; part < of_a.size(); ++part) {
            const long double x = of_a[part];
            const long double y = of_b[part];
            if (x == y || (std::isnan(x) && std::isnan(y))) continue;
            const auto difference = static_cast<double>(std::abs(x - y));
            const double limit = atol + rtol * std::abs(static_cast<double>(y));
            // Differences of integers are exact; those of F64 are rounded.
            const bool within = std::is_integral_v<T> ? std::abs(x - y) <= limit : difference <= limit;
            close = close && std::isfinite(x) && std::isfinite(y) && within;
            if (std::isnan(difference) || difference > result.max_abs) result.max_abs = difference;
            if (std::isnan(difference)) break;
        }
        if (!close && !result.first_apart) result.first_apart = static_cast<std::uint64_t>(i);
    }
    return result;
}

/// Compares random bits, with many elements that are equal or nearly equal.
template <class T> void try_random(std::mt19937_64& random) {
    const Dtype dtype = detail::dtype_of<T>();
    CAPTURE(name(dtype));
    for (const std::int64_t count : {0, 4, 12, 1'300}) {
        const auto size = static_cast<std::size_t>(*byte_size(dtype, static_cast<std::uint64_t>(count)));
        Bytes a(size);
        for (std::byte& byte : a) byte = static_cast<std::byte>(random());
        Bytes b = a;
        for (std::size_t i = 0; i < size / 8; ++i) b[random() % size] ^= static_cast<std::byte>(1U << random() % 8);
        for (const double atol : {0.0, 0.25, 3.0, 1e10, 1e30})
            for (const double rtol : {0.0, 1e-3, 0.5}) {
                const Closeness expected = slow<T>(a, b, count, atol, rtol);
                const Closeness found = compare_numbers(dtype, a, b, atol, rtol);
                CHECK(found.first_apart == expected.first_apart);
                if (std::isnan(found.max_abs)) continue;  // the slow reference stops at a NaN
                CHECK(found.max_abs == expected.max_abs);
            }
    }
}

template <class T> Bytes bytes_of(std::initializer_list<T> values) {
    Bytes bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), std::data(values), bytes.size());
    return bytes;
}

template <class T>
Closeness compare(std::initializer_list<T> a, std::initializer_list<T> b, double atol = 0, double rtol = 0) {
    return compare_numbers(detail::dtype_of<T>(), bytes_of(a), bytes_of(b), atol, rtol);
}

}  // namespace

TEST_CASE("numbers of every dtype are compared as by a slow reference") {
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    try_random<std::uint8_t>(random);
    try_random<std::int8_t>(random);
    try_random<std::uint16_t>(random);
    try_random<std::int16_t>(random);
    try_random<std::uint32_t>(random);
    try_random<std::int32_t>(random);
    try_random<std::uint64_t>(random);
    try_random<std::int64_t>(random);
    try_random<float>(random);
    try_random<double>(random);
    try_random<f16>(random);
    try_random<bf16>(random);
    try_random<f8_e4m3>(random);
    try_random<f8_e5m2>(random);
    try_random<f8_e4m3fnuz>(random);
    try_random<f8_e5m2fnuz>(random);
    try_random<f8_e8m0>(random);
    try_random<f6_e2m3>(random);
    try_random<f6_e3m2>(random);
    try_random<f4>(random);
    try_random<c32>(random);
    try_random<std::complex<float>>(random);
    try_random<std::complex<double>>(random);
}

TEST_CASE("differences of integers are exact in 64 bits") {
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    constexpr auto low = std::numeric_limits<std::int64_t>::min();
    constexpr auto high = std::numeric_limits<std::int64_t>::max();
    CHECK(compare<std::uint64_t>({most}, {0}).max_abs == 0x1p64);
    CHECK(compare<std::int64_t>({low}, {high}).max_abs == 0x1p64);
    CHECK(compare<std::int64_t>({low, low}, {low, high}).first_apart == 1);
    // 2^53 + 1 has no exact double.
    CHECK(compare<std::uint64_t>({(1ULL << 53) + 1}, {0}, 0x1p53).first_apart == 0);
    CHECK_FALSE(compare<std::uint64_t>({1ULL << 53}, {0}, 0x1p53).first_apart);
    CHECK(compare<std::uint64_t>({most}, {most - 1}).first_apart == 0);
    CHECK(compare<std::uint64_t>({most}, {most - 1}).max_abs == 1);
    CHECK_FALSE(compare<std::uint64_t>({most}, {0}, 0x1p64).first_apart);
    CHECK_FALSE(compare<std::uint64_t>({0}, {most}, 1e300, 1e300).first_apart);
    CHECK(compare<std::int8_t>({-128}, {127}).max_abs == 255);
}

TEST_CASE("NaNs are equal, an infinity equals only itself, and zeros ignore the sign") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    constexpr float inf = std::numeric_limits<float>::infinity();
    const Closeness same = compare<float>({nan, -nan, inf, -inf, 0.0F}, {-nan, nan, inf, -inf, -0.0F});
    CHECK_FALSE(same.first_apart);
    CHECK(same.max_abs == 0);
    // No tolerance makes an infinity equal a number.
    for (const float other : {1.0F, -inf}) {
        CHECK(compare<float>({inf}, {other}, 1e300, 1).first_apart == 0);
        CHECK(compare<float>({other}, {inf}, 1e300, 1).first_apart == 0);
        CHECK(compare<float>({other}, {inf}).max_abs == inf);
    }
    const Closeness apart = compare<float>({1, nan, 7}, {2, 1, 9}, 10);
    CHECK(apart.first_apart == 1);
    CHECK(std::isnan(apart.max_abs));
    // The relative tolerance scales with b, not with a.
    CHECK_FALSE(compare<double>({10}, {11}, 0, 0.0999).first_apart);
    CHECK(compare<double>({11}, {10}, 0, 0.0999).first_apart == 0);
}

TEST_CASE("booleans and opaque dtypes have no numbers") {
    for (const Dtype dtype : {Dtype::boolean, Dtype::qint8, Dtype::quint4x2, Dtype::bits8})
        CHECK_FALSE(has_numbers(dtype));
    for (const Dtype dtype : {Dtype::u64, Dtype::f4, Dtype::f8_e8m0, Dtype::bf16, Dtype::c32, Dtype::c128})
        CHECK(has_numbers(dtype));
}

}  // namespace closeness_test
