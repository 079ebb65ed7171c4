// Casts against a slow twin that searches all values of the target, and against values that torch gave.
#include "tensor/convert.hpp"
#include "doctest_safemap.hpp"

#include <safemap/float_types.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

using namespace safemap;

namespace {

struct Small {
    Dtype dtype;
    unsigned values;  // 2^bits
    float (*decode)(unsigned);
    bool has_infinity;
    bool saturates;
};

template <class T> float decode_as(unsigned raw) { return static_cast<float>(T{static_cast<decltype(T::bits)>(raw)}); }

const Small smalls[] = {
    {Dtype::bf16, 65536, decode_as<bf16>, true, false},
    {Dtype::f16, 65536, decode_as<f16>, true, false},
    {Dtype::f8_e4m3, 256, decode_as<f8_e4m3>, false, true},
    {Dtype::f8_e5m2, 256, decode_as<f8_e5m2>, true, false},
    {Dtype::f8_e4m3fnuz, 256, decode_as<f8_e4m3fnuz>, false, false},
    {Dtype::f8_e5m2fnuz, 256, decode_as<f8_e5m2fnuz>, false, false},
};

// The nearest value of a format by search in all its values; halfway, the one with the even bits.
class SlowTwin {
public:
    explicit SlowTwin(const Small& format) : format_(format) {
        for (unsigned raw = 0; raw < format.values; ++raw) {
            const double value = format.decode(raw);
            if (std::isfinite(value) && !std::signbit(value)) values_[value] = raw;
        }
    }

    // What `value` becomes: finite, infinite, or NaN, as a float.
    float convert(double value) const {
        if (std::isnan(value)) return NAN;
        const double magnitude = std::abs(value);
        const auto above = values_.lower_bound(magnitude);
        const double largest = values_.rbegin()->first;
        double result = 0;
        if (above == values_.end()) {
            // The next value, were there one more: beyond half way to it is overflow (a tie goes to the even, which
            // is that one: every format here ends on an odd mantissa, except that of F8_E4M3).
            const double step = largest - std::next(values_.rbegin())->first;
            const bool over = format_.saturates || magnitude >= largest + step / 2;
            result = !over ? largest : format_.has_infinity ? INFINITY : format_.saturates ? largest : NAN;
        } else if (above->first == magnitude || above == values_.begin()) {
            result = above->first;
        } else {
            const auto below = std::prev(above);
            const double up = above->first - magnitude;
            const double down = magnitude - below->first;
            result = up < down                ? above->first
                     : down < up              ? below->first
                     : above->second % 2 == 0 ? above->first
                                              : below->first;
        }
        const auto narrow = static_cast<float>(result);
        return std::signbit(value) ? -narrow : narrow;
    }

private:
    Small format_;
    std::map<double, unsigned> values_;  // finite, positive → bits
};

template <class From> float converted(From value, const Small& to, ConvertCounts* counts = nullptr) {
    std::vector<std::byte> out(element_size(to.dtype));
    const auto made =
        convert(sizeof(From) == 8 ? Dtype::f64 : Dtype::f32, std::as_bytes(std::span(&value, 1)), to.dtype, out);
    if (counts != nullptr) *counts = made;
    unsigned raw = 0;
    std::memcpy(&raw, out.data(), out.size());
    return to.decode(raw);
}

bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

template <class From> std::vector<From> interesting() {
    std::vector<From> out{0,
                          -0.0,
                          1,
                          -1,
                          INFINITY,
                          -INFINITY,
                          NAN,
                          std::numeric_limits<From>::denorm_min(),
                          std::numeric_limits<From>::min(),
                          std::numeric_limits<From>::max(),
                          -std::numeric_limits<From>::max()};
    std::mt19937_64 random(4);
    for (const Small& format : smalls)
        for (int i = 0; i < 3000; ++i) {
            // Values of each format, half way between neighbours, and next to these.
            const From a = format.decode(static_cast<unsigned>(random()) % format.values);
            const From b = format.decode(static_cast<unsigned>(random()) % format.values);
            const From middle =
                (a + format.decode(static_cast<unsigned>(std::bit_cast<std::uint32_t>(static_cast<float>(a)) + 1) %
                                   format.values)) /
                2;
            for (const From x : {a, middle, (a + b) / 2})
                for (const From y : {x, std::nextafter(x, From(INFINITY)), std::nextafter(x, From(-INFINITY))})
                    out.push_back(y);
        }
    for (int i = 0; i < 20000; ++i) {
        if constexpr (sizeof(From) == 4) out.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
        else out.push_back(std::bit_cast<double>(random()));
    }
    return out;
}

}  // namespace

TEST_CASE_TEMPLATE("casts from F32 and F64 agree with a search of all values", From, float, double) {
    const auto inputs = interesting<From>();
    for (const Small& format : smalls) {
        CAPTURE(name(format.dtype));
        const SlowTwin twin(format);
        for (const From x : inputs) {
            if (format.saturates && std::isinf(x)) continue;  // torch makes the largest value of it; below
            ConvertCounts counts;
            const float got = converted(x, format, &counts);
            const float want = twin.convert(static_cast<double>(x));
            // An infinite input stays infinite, or NaN where the format has none.
            const float wanted = std::isinf(x) ? (format.has_infinity ? static_cast<float>(x) : NAN) : want;
            if (!same(got, wanted)) FAIL("input ", x, " gave ", got, ", wanted ", wanted);
            CHECK(counts.non_finite == (std::isfinite(x) ? 0U : 1U));
            if (!format.saturates && std::isfinite(x)) CHECK(counts.overflowed == (std::isfinite(got) ? 0U : 1U));
        }
    }
}

TEST_CASE("every value of the small formats goes through F32 and F64 and comes back") {
    for (const Small& format : smalls)
        for (const Dtype wide : {Dtype::f32, Dtype::f64})
            for (unsigned raw = 0; raw < format.values; ++raw) {
                std::vector<std::byte> in(element_size(format.dtype));
                std::memcpy(in.data(), &raw, in.size());
                std::vector<std::byte> middle(element_size(wide));
                std::vector<std::byte> out(in.size());
                convert(format.dtype, in, wide, middle);
                convert(wide, middle, format.dtype, out);
                const float value = format.decode(raw);
                if (std::isnan(value)) {
                    unsigned back = 0;
                    std::memcpy(&back, out.data(), out.size());
                    CHECK(std::isnan(format.decode(back)));
                } else if (in != out) {
                    FAIL(name(format.dtype), " ", raw, " did not come back");
                }
            }
}

TEST_CASE("what torch 2.13 makes of values beyond the range") {
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

TEST_CASE("the fast cast from F32 to BF16 equals the general one on long inputs, counts included") {
    std::mt19937 random(9);
    std::vector<std::uint32_t> in(50'001);
    for (auto& x : in) x = static_cast<std::uint32_t>(random() % 7 == 0 ? 0x7F7FFFFFU + random() % 3 : random());
    std::vector<std::uint16_t> out(in.size());
    const auto all =
        convert(Dtype::f32, std::as_bytes(std::span(in)), Dtype::bf16, std::as_writable_bytes(std::span(out)));
    ConvertCounts sum;
    for (std::size_t i = 0; i < in.size(); ++i) {
        const auto x = std::bit_cast<float>(in[i]);
        const float got = bf16{out[i]};
        if (std::isnan(x)) {
            CHECK(std::isnan(got));
            ++sum.non_finite;
            continue;
        }
        if (std::isinf(x)) ++sum.non_finite;
        else if (std::isinf(got)) ++sum.overflowed;
        CHECK(std::signbit(got) == std::signbit(x));
    }
    CHECK(all.non_finite == sum.non_finite);
    CHECK(all.overflowed == sum.overflowed);
}

TEST_CASE("casts exist between the float dtypes and nowhere else") {
    int castable = 0;
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) castable += is_castable(static_cast<Dtype>(i)) ? 1 : 0;
    CHECK(castable == 8);
    for (const Dtype dtype :
         {Dtype::boolean, Dtype::u8, Dtype::i64, Dtype::f4, Dtype::f6_e3m2, Dtype::f8_e8m0, Dtype::c64})
        CHECK_FALSE(is_castable(dtype));
}

TEST_CASE("byte order, conjugation and sign, in place") {
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

TEST_CASE("the value types decode what their formats say") {
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
