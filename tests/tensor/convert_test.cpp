// Tests casts against a slow reference that searches all values of the target, and against results of torch. From top
// to bottom: special values and boundaries, rounding, random bits, alignment, counts, decoding, value types.
#include "tensor/convert.hpp"
#include "doctest_safemap.hpp"
#include "reference/slow_cast.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/float_types.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

namespace convert_test {

using namespace safemap;
using reference::slow_cast;
using reference::SlowFormat;

namespace {

constexpr Dtype smalls[] = {Dtype::f16,     Dtype::bf16,        Dtype::f8_e4m3,
                            Dtype::f8_e5m2, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz};
constexpr Dtype castables[] = {Dtype::f64,     Dtype::f32,     Dtype::f16,         Dtype::bf16,
                               Dtype::f8_e4m3, Dtype::f8_e5m2, Dtype::f8_e4m3fnuz, Dtype::f8_e5m2fnuz};

std::uint64_t element(std::span<const std::byte> bytes, std::size_t size, std::size_t i) {
    std::uint64_t raw = 0;
    std::memcpy(&raw, bytes.data() + i * size, size);
    return raw;
}

/// Converts all elements at once, and compares each of them and the counts with the reference.
void check_casts(Dtype from, std::span<const std::byte> in, Dtype to, Vectors vectors) {
    const std::size_t from_size = element_size(from);
    const std::size_t to_size = element_size(to);
    const std::size_t count = in.size() / from_size;
    std::vector<std::byte> out(count * to_size);
    const ConvertCounts counts = convert(from, in, to, out, vectors);
    ConvertCounts wanted;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t raw = element(in, from_size, i);
        const reference::Cast slow = slow_cast(from, raw, to);
        wanted.overflowed += slow.overflowed ? 1 : 0;
        wanted.non_finite += slow.non_finite ? 1 : 0;
        if (element(out, to_size, i) != slow.bits)
            FAIL(name(from), " to ", name(to), ": bits ", raw, " gave ", element(out, to_size, i), ", wanted ",
                 slow.bits);
    }
    CAPTURE(name(from));
    CAPTURE(name(to));
    CHECK(counts.overflowed == wanted.overflowed);
    CHECK(counts.non_finite == wanted.non_finite);
}

void check_casts(Dtype from, std::span<const std::byte> in, Dtype to) {
    check_casts(from, in, to, Vectors::baseline);
    if (widest_vectors() != Vectors::baseline) check_casts(from, in, to, widest_vectors());
}

template <class T> void check_casts(const std::vector<T>& in, Dtype to) {
    const Dtype from = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;
    if (to != from) check_casts(from, std::as_bytes(std::span(in)), to);
}

std::uint64_t new_seed() {
    const char* const text = std::getenv("SAFEMAP_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
}

/// Returns every kind of value that has no finite neighbours to be half way between: zeros, subnormals, infinities and
/// NaNs of both signs, each bit of the payload alone, with and without the quiet bit.
template <class T> std::vector<T> special_values() {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    using Limits = std::numeric_limits<T>;
    std::vector<T> made{0, Limits::denorm_min(), Limits::min() / 2, Limits::min(), Limits::max(), Limits::infinity()};
    const Bits infinity = std::bit_cast<Bits>(Limits::infinity());
    const Bits quiet = Bits{1} << (Limits::digits - 2);
    for (Bits payload = 1; payload <= quiet; payload <<= 1)
        for (const Bits bits : {infinity | payload, infinity | quiet | payload}) made.push_back(std::bit_cast<T>(bits));
    const std::size_t positive = made.size();
    for (std::size_t i = 0; i < positive; ++i) made.push_back(-made[i]);
    return made;
}

/// Returns each value of the format, the midpoint to the next value (for the last one beyond the range), and the
/// neighbours of these, of both signs.
template <class T> std::vector<T> boundaries(Dtype format) {
    const auto& values = SlowFormat::of(format).values();
    std::vector<T> made;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double next = i + 1 < values.size() ? values[i + 1] : 2 * values[i] - values[i - 1];
        for (const double exact : {values[i], values[i] / 2 + next / 2})
            for (const double sign : {1.0, -1.0}) {
                const auto x = static_cast<T>(sign * exact);
                constexpr T infinity = std::numeric_limits<T>::infinity();
                for (const T y : {x, std::nextafter(x, infinity), std::nextafter(x, -infinity)}) made.push_back(y);
            }
    }
    return made;
}

}  // namespace

TEST_CASE("every value of the 8-bit and 16-bit formats is cast to every other format as by the slow reference") {
    for (const Dtype from : smalls) {
        std::vector<std::uint16_t> wide(std::size_t{1} << (8 * element_size(from)));
        std::iota(wide.begin(), wide.end(), std::uint16_t{0});
        const std::vector<std::uint8_t> narrow(wide.begin(), wide.begin() + 256);
        const auto bytes = element_size(from) == 1 ? std::as_bytes(std::span(narrow)) : std::as_bytes(std::span(wide));
        for (const Dtype to : castables)
            if (to != from) check_casts(from, bytes, to);
    }
}

TEST_CASE_TEMPLATE("casts round to the nearest, ties to even, at every boundary of every format", From, float, double) {
    for (const Dtype to : smalls) check_casts(boundaries<From>(to), to);
}

TEST_CASE_TEMPLATE("zeros, subnormals, infinities and NaNs with payloads are cast as by the slow reference", From,
                   float, double) {
    for (const Dtype to : castables) check_casts(special_values<From>(), to);
}

TEST_CASE_TEMPLATE("random bits are cast as by the slow reference", From, float, double) {
    const std::uint64_t seed = new_seed();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    std::vector<From> values(50'001);
    for (From& value : values) {
        // All exponents first; then those that the narrow formats have.
        if constexpr (sizeof(From) == 8) value = std::bit_cast<double>(random());
        else value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        if (random() % 2 == 0)
            value = static_cast<From>(
                std::ldexp(1.0 + static_cast<double>(random() >> 12) / 0x1p52, static_cast<int>(random() % 40) - 22));
    }
    for (const Dtype to : castables) check_casts(values, to);
}

TEST_CASE("a cast writes only its own elements, for any count and alignment") {
    const std::uint64_t seed = new_seed();
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    constexpr std::byte guard{0xA5};
    const std::size_t counts[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 1023, 1024, 1025, 2049};
    for (const Dtype from : castables)
        for (const Dtype to : castables)
            for (const std::size_t count : counts) {
                const std::size_t before = random() % 8;
                const std::size_t after = 1 + random() % 8;
                std::vector<std::byte> in(before + count * element_size(from));
                for (std::byte& x : in) x = static_cast<std::byte>(random());
                const auto source = std::span(in).subspan(before);
                std::vector<std::byte> out(after + count * element_size(to) + 64, guard);
                const auto target = std::span(out).subspan(after, count * element_size(to));
                convert(from, source, to, target, random() % 2 == 0 ? Vectors::baseline : widest_vectors());
                for (std::size_t i = 0; i < count; ++i) {
                    const std::uint64_t raw = element(source, element_size(from), i);
                    const std::uint64_t wanted = from == to ? raw : slow_cast(from, raw, to).bits;
                    if (element(target, element_size(to), i) != wanted)
                        FAIL(name(from), " to ", name(to), ", element ", i, " of ", count);
                }
                const auto guards = std::count(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(after), guard) +
                                    std::count(out.end() - 64, out.end(), guard);
                CHECK(guards == static_cast<std::ptrdiff_t>(after + 64));
            }
}

TEST_CASE("a cast to a wider format and back gives the same value") {
    for (const Dtype narrow : smalls)
        for (const Dtype wide : {Dtype::f32, Dtype::f64})
            for (std::uint32_t raw = 0; raw < 1U << (8 * element_size(narrow)); ++raw) {
                const float value = std::bit_cast<float>(SlowFormat::of(narrow).to_f32(raw));
                if (std::isnan(value)) continue;
                std::uint64_t middle = 0;
                std::uint32_t back = 0;
                const auto view = [](auto& x, Dtype d) {
                    return std::as_writable_bytes(std::span(&x, 1)).first(element_size(d));
                };
                convert(narrow, view(raw, narrow), wide, view(middle, wide));
                convert(wide, view(middle, wide), narrow, view(back, narrow));
                if (back != raw) FAIL(name(narrow), " ", raw, " came back as ", back);
            }
}

TEST_CASE("F64 is cast to narrow formats through F32, as in torch") {
    // Slightly above the midpoint from 1 to the next value: F32 rounds it to the midpoint, which is a tie, and 1 is
    // even.
    struct Row {
        Dtype to;
        double half;
        std::uint64_t one;
    };
    const Row rows[] = {{Dtype::f16, 0x1p-11, 0x3C00},      {Dtype::bf16, 0x1p-8, 0x3F80},
                        {Dtype::f8_e4m3, 0x1p-4, 0x38},     {Dtype::f8_e5m2, 0x1p-3, 0x3C},
                        {Dtype::f8_e4m3fnuz, 0x1p-4, 0x40}, {Dtype::f8_e5m2fnuz, 0x1p-3, 0x40}};
    for (const Row& row : rows) {
        CAPTURE(name(row.to));
        for (const double x : {1 + row.half + 0x1p-40, 1 + row.half + 0x1p-20}) {
            std::uint64_t out = 0;
            convert(Dtype::f64, std::as_bytes(std::span(&x, 1)), row.to,
                    std::as_writable_bytes(std::span(&out, 1)).first(element_size(row.to)));
            CHECK(out == row.one + (x > 1 + row.half + 0x1p-30 ? 1 : 0));
        }
    }
}

TEST_CASE(
    "finite values that are too large count as overflow, non-finite values as non-finite, and none counts twice") {
    const auto counted = [](double x, Dtype to) {
        const std::vector<double> in(3, x);
        std::vector<std::byte> out(3 * element_size(to));
        return convert(Dtype::f64, std::as_bytes(std::span(in)), to, out);
    };
    struct Row {
        Dtype to;
        double fits;  // rounds to the largest value
    };
    for (const Row& row : {Row{Dtype::f32, 0x1.FFFFFEFFFFFFFp127}, Row{Dtype::bf16, 0x1.FEFFFEp127},
                           Row{Dtype::f16, 65519.99}, Row{Dtype::f8_e4m3, 464.0}, Row{Dtype::f8_e5m2, 61439.99},
                           Row{Dtype::f8_e4m3fnuz, 247.99}, Row{Dtype::f8_e5m2fnuz, 61439.99}}) {
        CAPTURE(name(row.to));
        CHECK(counted(-row.fits, row.to).overflowed == 0);
        for (const double large : {row.fits * 1.001, 1e308, -1e308}) {
            CHECK(counted(large, row.to).overflowed == 3);
            CHECK(counted(large, row.to).non_finite == 0);
        }
        for (const double x : {double{INFINITY}, -double{INFINITY}, double{NAN}}) {
            CHECK(counted(x, row.to).overflowed == 0);
            CHECK(counted(x, row.to).non_finite == 3);
        }
    }
}

TEST_CASE("values beyond the range become what torch 2.13 makes of them") {
    struct Row {
        float in;
        std::uint8_t e4m3, e5m2, e4m3fnuz, e5m2fnuz;
    };
    // torch.tensor(in).to(dtype).view(torch.uint8)
    const Row rows[] = {{480.0F, 0x7E, 0x60, 0x80, 0x64},    {1e9F, 0x7E, 0x7C, 0x80, 0x80},
                        {-1e9F, 0xFE, 0xFC, 0x80, 0x80},     {INFINITY, 0x7E, 0x7C, 0x80, 0x80},
                        {-INFINITY, 0xFE, 0xFC, 0x80, 0x80}, {-0.0F, 0x80, 0x80, 0x00, 0x00},
                        {61440.0F, 0x7E, 0x7C, 0x80, 0x80},  {61439.0F, 0x7E, 0x7B, 0x80, 0x7F},
                        {247.0F, 0x77, 0x5C, 0x7F, 0x60},    {248.0F, 0x78, 0x5C, 0x80, 0x60}};
    const auto raw = [](float in, Dtype dtype) {
        std::byte out{};
        convert(Dtype::f32, std::as_bytes(std::span(&in, 1)), dtype, std::span(&out, 1));
        return std::to_integer<std::uint8_t>(out);
    };
    for (const Row& row : rows) {
        CAPTURE(row.in);
        CHECK(raw(row.in, Dtype::f8_e4m3) == row.e4m3);
        CHECK(raw(row.in, Dtype::f8_e5m2) == row.e5m2);
        CHECK(raw(row.in, Dtype::f8_e4m3fnuz) == row.e4m3fnuz);
        CHECK(raw(row.in, Dtype::f8_e5m2fnuz) == row.e5m2fnuz);
    }
}

TEST_CASE("casts exist only between float dtypes") {
    int castable = 0;
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) castable += is_castable(static_cast<Dtype>(i)) ? 1 : 0;
    CHECK(castable == 8);
    for (const Dtype dtype :
         {Dtype::boolean, Dtype::u8, Dtype::i64, Dtype::f4, Dtype::f6_e3m2, Dtype::f8_e8m0, Dtype::c64})
        CHECK_FALSE(is_castable(dtype));
}

TEST_CASE("byte order, conjugation and sign are decoded in place") {
    std::uint32_t words[] = {0x01020304, 0xAABBCCDD};
    byte_swap(std::as_writable_bytes(std::span(words)), 4);
    CHECK(words[0] == 0x04030201);
    byte_swap(std::as_writable_bytes(std::span(words)), 1);
    CHECK(words[1] == 0xDDCCBBAA);
    float pair[] = {1, 2, 3, 4};
    conjugate(Dtype::c64, std::as_writable_bytes(std::span(pair)));
    CHECK(pair[1] == -2);
    CHECK(pair[2] == 3);
    negate(Dtype::c64, std::as_writable_bytes(std::span(pair)));
    CHECK(pair[0] == -1);
    CHECK(pair[1] == 2);
    conjugate(Dtype::f32, std::as_writable_bytes(std::span(pair)));
    CHECK(pair[1] == 2);
    std::int16_t numbers[] = {5, -32768};
    negate(Dtype::i16, std::as_writable_bytes(std::span(numbers)));
    CHECK(numbers[0] == -5);
    CHECK(numbers[1] == -32768);
    std::int64_t wide[] = {7};
    negate(Dtype::i64, std::as_writable_bytes(std::span(wide)));
    CHECK(wide[0] == -7);
}

TEST_CASE("the value types decode as their formats specify") {
    CHECK(static_cast<float>(bf16{0x3F80}) == 1.0F);
    CHECK(static_cast<float>(f16{0x3C00}) == 1.0F);
    CHECK(static_cast<float>(f16{0x0001}) == std::ldexp(1.0F, -24));
    CHECK(static_cast<float>(f16{0x7BFF}) == 65504.0F);
    CHECK(std::isinf(static_cast<float>(f16{0xFC00})));
    CHECK(static_cast<float>(f8_e4m3{0x7E}) == 448.0F);
    CHECK(std::isnan(static_cast<float>(f8_e4m3{0xFF})));
    CHECK(static_cast<float>(f8_e5m2{0x7B}) == 57344.0F);
    CHECK(static_cast<float>(f8_e4m3fnuz{0x7F}) == 240.0F);
    CHECK(std::isnan(static_cast<float>(f8_e4m3fnuz{0x80})));
    CHECK(static_cast<float>(f8_e5m2fnuz{0x7F}) == 57344.0F);
    CHECK(static_cast<float>(f8_e8m0{127}) == 1.0F);
    CHECK(static_cast<float>(f8_e8m0{0}) == std::ldexp(1.0F, -127));
    CHECK(std::isnan(static_cast<float>(f8_e8m0{255})));
}

}  // namespace convert_test
