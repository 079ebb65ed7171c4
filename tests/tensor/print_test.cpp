// Tests tensors as text for people.
#include "doctest_safemap.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/tensor_view.hpp>

#include <algorithm>
#include <sstream>
#include <vector>

namespace print_test {

using namespace safemap;

namespace {

template <class T> std::string shown(Dtype dtype, const std::vector<T>& values, const Shape& shape) {
    return to_string(TensorView(dtype, {std::as_bytes(std::span(values))}, {shape, row_major(shape), 0}));
}

std::string shown_bytes(Dtype dtype, std::vector<std::uint8_t> bytes, const Shape& shape) {
    return shown(dtype, bytes, shape);
}

std::vector<std::int32_t> counted(std::size_t n) {
    std::vector<std::int32_t> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::int32_t>(i);
    return out;
}

}  // namespace

TEST_CASE("values are in columns, with brackets for each dimension") {
    CHECK(shown(Dtype::i32, std::vector<std::int32_t>{1, -20, 3, 4}, {2, 2}) == "I32 [2, 2]\n[[  1 -20]\n [  3   4]]");
    CHECK(shown(Dtype::i32, counted(8), {2, 2, 2}) == "I32 [2, 2, 2]\n[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
    CHECK(shown(Dtype::f32, std::vector<float>{1, 2.5F, -0.0F, NAN, -INFINITY, 1e-9F}, {6}) ==
          "F32 [6]\n[    1   2.5    -0   nan  -inf 1e-09]");
    std::ostringstream out;
    const std::uint8_t seven[] = {7};
    out << TensorView(Dtype::u8, {std::as_bytes(std::span(seven))}, {});
    CHECK(out.str() == "U8 []\n7");
}

TEST_CASE("tensors without elements print their dtype and shape") {
    CHECK(shown(Dtype::f64, std::vector<double>{}, {0}) == "F64 [0]\n[]");
    CHECK(shown(Dtype::f64, std::vector<double>{}, {3, 0, 2}) == "F64 [3, 0, 2]\n[]");
}

TEST_CASE("large tensors print only their edges, and long lines are broken") {
    CHECK(shown(Dtype::i32, counted(1001), {1001}) == "I32 [1001]\n[   0    1    2 ...  998  999 1000]");
    CHECK(shown(Dtype::i32, counted(2002), {1001, 2}) ==
          "I32 [1001, 2]\n[[   0    1]\n [   2    3]\n [   4    5]\n ...\n [1996 1997]\n [1998 1999]\n [2000 2001]]");
    const std::string thousand = shown(Dtype::i32, counted(1000), {1000});
    CHECK(thousand.find("...") == std::string::npos);
    std::istringstream lines(thousand);
    std::string line;
    std::size_t longest = 0;
    while (std::getline(lines, line)) longest = std::max(longest, line.size());
    CHECK(longest <= 75);
    CHECK(longest > 70);
}

TEST_CASE("strided views print their own elements") {
    const auto values = counted(6);
    const TensorView view(Dtype::i32, {std::as_bytes(std::span(values))}, {{3, 2}, {-1, 3}, 2});
    CHECK(to_string(view) == "I32 [3, 2]\n[[2 5]\n [1 4]\n [0 3]]");
}

TEST_CASE("every dtype has a text") {
    CHECK(shown_bytes(Dtype::boolean, {0, 1, 3}, {3}) == "BOOL [3]\n[false  true  0x03]");
    CHECK(shown_bytes(Dtype::f4, {0x2F, 0x71}, {4}) == "F4 [4]\n[ -6   1 0.5   6]");
    const std::string six_bits = shown_bytes(Dtype::f6_e2m3, {0b01011111, 0b11110000, 0b00000011}, {4});
    CHECK(six_bits == "F6_E2M3 [4]\n[  7.5 0.125  -7.5     0]");
    CHECK(shown_bytes(Dtype::i8, {255}, {1}) == "I8 [1]\n[-1]");
    CHECK(shown_bytes(Dtype::f8_e4m3, {0x7E}, {1}) == "F8_E4M3 [1]\n[448]");
    CHECK(shown_bytes(Dtype::c32, {0x00, 0x3C, 0x00, 0xC0}, {1}) == "complex32 [1]\n[1-2j]");
    CHECK(shown(Dtype::c64, std::vector<float>{0.5F, 1, 2, NAN}, {2}) == "C64 [2]\n[0.5+1j 2+nanj]");
    CHECK(shown(Dtype::c128, std::vector<double>{1, -1}, {}) == "complex128 []\n1-1j");
    CHECK(shown_bytes(Dtype::bits16, {0x34, 0x12}, {1}) == "bits16 [1]\n[0x1234]");
    for (int i = 0; i <= static_cast<int>(Dtype::bits4x2); ++i) {
        const auto dtype = static_cast<Dtype>(i);
        const auto text = shown_bytes(dtype, std::vector<std::uint8_t>(16 * 4), {4});
        CAPTURE(text);
        // The same word four times, and only zeros.
        const std::string values = text.substr(text.find('\n') + 2);
        const std::string word = values.substr(0, values.find(' '));
        CHECK(values == word + ' ' + word + ' ' + word + ' ' + word + ']');
        if (dtype == Dtype::f8_e8m0) CHECK(word == "5.87747e-39");
        else CHECK(word.find_first_not_of("0x+jfalse") == std::string::npos);
    }
}

TEST_CASE("huge dimensions cost neither time nor text") {
    const std::uint8_t one[] = {1};
    const SharedBytes bytes{std::as_bytes(std::span(one))};
    // 2^60 elements, all of them the same byte.
    const std::string many = to_string(TensorView(Dtype::u8, bytes, {Shape(60, 2), Strides(60, 0), 0}));
    CHECK(many.size() < 200'000);
    CHECK(many.find("...") != std::string::npos);
    const std::string deep = to_string(TensorView(Dtype::u8, bytes, {Shape(100'000, 1), Strides(100'000, 1), 0}));
    CHECK(deep.ends_with("\n[...]"));
}

}  // namespace print_test
