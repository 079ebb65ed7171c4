// Tests elements of every dtype as text.
#include "tensor/element_text.hpp"
#include "doctest_safemap.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/float_types.hpp>

#include <bit>
#include <complex>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace element_text_test {

using namespace safemap;

namespace {
template <class T> std::string text(Dtype dtype, T value) {
    return element_text(dtype, std::as_bytes(std::span(&value, 1)).data(), 0);
}
}  // namespace

TEST_CASE("integers and booleans read as they are") {
    CHECK(text(Dtype::u8, std::uint8_t{200}) == "200");
    CHECK(text(Dtype::i8, std::int8_t{-128}) == "-128");
    CHECK(text(Dtype::u16, std::uint16_t{65535}) == "65535");
    CHECK(text(Dtype::i16, std::int16_t{-2}) == "-2");
    CHECK(text(Dtype::u32, std::uint32_t{4'000'000'000}) == "4000000000");
    CHECK(text(Dtype::i32, std::int32_t{-7}) == "-7");
    CHECK(text(Dtype::u64, std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
    CHECK(text(Dtype::i64, std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
    CHECK(text(Dtype::boolean, std::uint8_t{0}) == "false");
    CHECK(text(Dtype::boolean, std::uint8_t{1}) == "true");
    CHECK(text(Dtype::boolean, std::uint8_t{2}) == "0x02");
}

TEST_CASE("floating-point numbers are printed with the fewest digits that identify them") {
    CHECK(text(Dtype::f32, 0.1F) == "0.1");
    CHECK(text(Dtype::f64, 0.1) == "0.1");
    CHECK(text(Dtype::f64, static_cast<double>(0.1F)) == "0.10000000149011612");
    CHECK(text(Dtype::f32, -0.0F) == "-0");
    CHECK(text(Dtype::f32, std::numeric_limits<float>::infinity()) == "inf");
    CHECK(text(Dtype::f32, std::numeric_limits<float>::quiet_NaN()) == "nan");
    CHECK(text(Dtype::bf16, bf16{0x3FC0}) == "1.5");
    CHECK(text(Dtype::f16, f16{0x3E00}) == "1.5");
    CHECK(text(Dtype::f8_e4m3, f8_e4m3{0x3C}) == "1.5");
    CHECK(text(Dtype::f8_e5m2, f8_e5m2{0x3E}) == "1.5");
    CHECK(text(Dtype::f8_e4m3fnuz, f8_e4m3fnuz{0x44}) == "1.5");
    CHECK(text(Dtype::f8_e5m2fnuz, f8_e5m2fnuz{0x42}) == "1.5");
    CHECK(text(Dtype::f8_e8m0, f8_e8m0{128}) == "2");
    CHECK(text(Dtype::f4, f4{3}) == "1.5");
    CHECK(text(Dtype::f4, f4{8}) == "-0");
    CHECK(text(Dtype::f6_e2m3, f6_e2m3{12}) == "1.5");
    CHECK(text(Dtype::f6_e3m2, f6_e3m2{14}) == "1.5");
}

TEST_CASE("every float is read back the same from its text") {
    std::mt19937 random(1);
    for (int i = 0; i < 10'000; ++i) {
        const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        if (value == value) CHECK(std::strtof(text(Dtype::f32, value).c_str(), nullptr) == value);
    }
}

TEST_CASE("complex numbers are printed with both parts") {
    CHECK(text(Dtype::c64, std::complex<float>(1.5F, -2)) == "1.5-2j");
    CHECK(text(Dtype::c128, std::complex<double>(-1, 0)) == "-1+0j");
    CHECK(text(Dtype::c64, std::complex<float>(0, -0.0F)) == "0-0j");
    const f16 pair[] = {{0x3E00}, {0xBE00}};
    CHECK(element_text(Dtype::c32, std::as_bytes(std::span(pair)).data(), 0) == "1.5-1.5j");
}

TEST_CASE("elements of opaque dtypes are printed as bits") {
    CHECK(text(Dtype::qint32, std::uint32_t{0x1234}) == "0x00001234");
    CHECK(text(Dtype::bits16, std::uint16_t{0xBEEF}) == "0xbeef");
}

TEST_CASE("every dtype has a text") {
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        CAPTURE(dtype);
        const std::vector<std::byte> zeros((bits(dtype) + 7) / 8);
        CHECK_FALSE(element_text(dtype, zeros.data(), 0).empty());
    }
}

TEST_CASE("an element is found by its number, and is printed with the requested digits") {
    const float values[] = {1.0F, 1.0F / 3, -0.0F};
    const auto* base = std::as_bytes(std::span(values)).data();
    CHECK(element_text(Dtype::f32, base, 1) == "0.33333334");
    CHECK(element_text(Dtype::f32, base, 1, 3) == "0.333");
    CHECK(element_text(Dtype::f32, base + sizeof values, -1) == "-0");
    const std::byte packed[] = {std::byte{0x21}};  // 0.5 and 1 in F4
    CHECK(element_text(Dtype::f4, packed, 0) == "0.5");
    CHECK(element_text(Dtype::f4, packed, 1) == "1");
}

}  // namespace element_text_test
