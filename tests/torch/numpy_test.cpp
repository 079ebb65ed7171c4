// Tests NumPy in pickles: each dtype, both forms of bytes objects, both byte orders, both orders of dimensions; and
// inconsistent sizes.
#include <safemap/advanced/flatten.hpp>

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include <bit>
#include <cmath>

namespace numpy_test {

using namespace safemap;
using namespace std::string_literals;

namespace {

StateTree tree_of(const std::string& value) { return fixtures::open(forge::archive(value)).tree; }

/// Returns numpy.dtype('f4', False, True) with its state.
std::string dtype(const std::string& code, const std::string& order = "<", const std::string& more = "NNN",
                  const std::string& after = "") {
    return forge::call("numpy", "dtype", {forge::text(code), "\x89", "\x88"}) + "(K\x03" + forge::text(order) + more +
           "J\xff\xff\xff\xffJ\xff\xff\xff\xffK" + "\0"s + after + "tb";
}
std::string bytes(const std::string& value) { return "B" + forge::little(value.size(), 4) + value; }
std::string array(const std::string& of, std::initializer_list<std::string> shape, const std::string& data,
                  bool fortran = false, const std::string& type = "ndarray") {
    return forge::call("numpy.core.multiarray", "_reconstruct", {forge::global("numpy", type), "(K\0t"s, bytes("b")}) +
           forge::tuple({forge::integer(1), forge::tuple(shape), of, fortran ? "\x88" : "\x89", data}) + "b";
}
std::string scalar(const std::string& of, const std::string& data) {
    return forge::call("numpy._core.multiarray", "scalar", {of, data});
}
std::string number(std::int64_t value) { return forge::integer(value); }

StateTree::Tensor array_of(const std::string& value) {
    const StateTree tree = tree_of(value);
    const auto* tensor = std::get_if<StateTree::Tensor>(&tree[tree.root()]);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->numpy);
    return *tensor;
}

template <class T>
T value_of(const std::string& code, const std::string& order, const std::string& data, const std::string& named) {
    const StateTree tree = tree_of(scalar(dtype(code, order), bytes(data)));
    const auto* found = std::get_if<StateTree::NumpyScalar>(&tree[tree.root()]);
    REQUIRE(found != nullptr);
    CHECK(found->dtype == named);
    const auto* value = std::get_if<T>(&tree[found->value]);
    REQUIRE(value != nullptr);
    return *value;
}

}  // namespace

TEST_CASE("arrays of every dtype are tensors") {
    const std::tuple<const char*, Dtype, std::size_t> rows[]{
        {"b1", Dtype::boolean, 1}, {"i1", Dtype::i8, 1},    {"u1", Dtype::u8, 1},  {"i2", Dtype::i16, 2},
        {"u2", Dtype::u16, 2},     {"i4", Dtype::i32, 4},   {"u4", Dtype::u32, 4}, {"i8", Dtype::i64, 8},
        {"u8", Dtype::u64, 8},     {"f2", Dtype::f16, 2},   {"f4", Dtype::f32, 4}, {"f8", Dtype::f64, 8},
        {"c8", Dtype::c64, 8},     {"c16", Dtype::c128, 16}};
    for (const auto& row : rows) {
        const std::string code = std::get<0>(row);
        CAPTURE(code);
        std::string data;
        for (std::size_t i = 0; i < 2 * std::get<2>(row); ++i) data += static_cast<char>(i % 2);
        const auto made = array_of(array(dtype(code), {number(2)}, bytes(data)));
        CHECK(made.tensor.dtype() == std::get<1>(row));
        CHECK(made.tensor.shape() == Shape{2});
        CHECK(bytes_of(made.tensor) == data);
    }
}

TEST_CASE("arrays are read in either byte order, order of dimensions and form of bytes objects") {
    CHECK(bytes_of(array_of(array(dtype("u2", ">"), {number(2)}, bytes("\1\2\3\4"))).tensor) == "\2\1\4\3");
    const auto latin1 = forge::call("_codecs", "encode", {forge::text("\xc3\xbf\1"), forge::text("latin1")});
    CHECK(bytes_of(array_of(array(dtype("u2"), {number(1)}, latin1)).tensor) == "\xff\1");
    const auto columns = array_of(array(dtype("u1", "|"), {number(2), number(3)}, bytes("adbecf"), true));
    CHECK(columns.tensor.shape() == Shape{2, 3});
    CHECK(bytes_of(columns.tensor) == "abcdef");
    CHECK(bytes_of(array_of(array(dtype("u1", "|"), {}, bytes("a"))).tensor) == "a");
    CHECK(array_of(array(dtype("f8"), {number(0), number(std::int64_t{1} << 62), number(std::int64_t{1} << 62)},
                         bytes(""), true))
              .tensor.element_count() == 0);
    // Protocol 5: _frombuffer(buffer, dtype, shape, order).
    const auto from = [](const std::string& order) {
        return array_of(forge::call("numpy._core.numeric", "_frombuffer",
                                    {"\x96" + forge::little(4, 8) + "abcd", dtype("u1", "|"),
                                     forge::tuple({number(2), number(2)}), forge::text(order)}));
    };
    CHECK(bytes_of(from("C").tensor) == "abcd");
    CHECK(bytes_of(from("F").tensor) == "acbd");
}

TEST_CASE("an array with inconsistent sizes is refused") {
    CHECK_FAULT(tree_of(array(dtype("f4"), {number(2)}, bytes("1234567"))), Errc::storage_too_short);
    CHECK_FAULT(tree_of(array(dtype("f4"), {number(2)}, bytes("123456789"))), Errc::bad_tensor);
    CHECK_FAULT(tree_of(array(dtype("f4"), {number(-2)}, bytes("12345678"))), Errc::bad_tensor);
    CHECK_FAULT(tree_of(array(dtype("f4"), {forge::text("2")}, bytes("12345678"))), Errc::bad_tensor);
    CHECK_FAULT(tree_of(array(dtype("f4"), {number(2)}, number(8))), Errc::bad_tensor);
    const auto huge = number(std::int64_t{1} << 32);
    CHECK_FAULT(tree_of(array(dtype("f4"), {huge, huge}, bytes("1"))), Errc::shape_overflow);
    CHECK_FAULT(tree_of(array(dtype("f8"), {number(std::int64_t{1} << 61)}, bytes("1"))), Errc::shape_overflow);
    CHECK_FAULT(tree_of(scalar(dtype("f4"), bytes("123"))), Errc::bad_tensor);
    CHECK_FAULT(tree_of(scalar(dtype("f4"), number(1))), Errc::bad_tensor);
}

TEST_CASE("texts, records, dates and objects keep their parts") {
    const auto unit = "N" + forge::tuple({bytes("D"), number(25), number(1), number(1)}) + "\x86";
    for (const auto& row : {std::pair{dtype("U1"), "<U1"s}, std::pair{dtype("S4", "|"), "|S4"s},
                            std::pair{dtype("M8", "<", "NNN", unit), "<M8[25D]"s}, std::pair{dtype("f16"), "<f16"s}}) {
        const std::string& wanted = row.second;
        CAPTURE(wanted);
        const StateTree tree = tree_of(array(row.first, {number(1)}, bytes("a\0\0\0"s)));
        const auto* found = std::get_if<StateTree::Opaque>(&tree[tree.root()]);
        REQUIRE(found != nullptr);
        CHECK(found->type == "numpy.ndarray");
        CHECK(found->why.find(wanted) != std::string::npos);
        REQUIRE(found->children.size() == 4);
        CHECK(std::get<StateTree::Constant>(tree[found->children[0].second]).text == wanted);
        CHECK(std::get<StateTree::Bytes>(tree[found->children[3].second]).bytes == "a\0\0\0"s);
    }
    const auto names = forge::tuple({forge::text("x")});
    const StateTree records = tree_of(array(dtype("V4", "|", "N" + names + "}"), {number(1)}, bytes("abcd")));
    const auto& of_records = std::get<StateTree::Opaque>(records[records.root()]);
    CHECK(of_records.why.find("records") != std::string::npos);
    CHECK(std::get<StateTree::Opaque>(records[of_records.children[0].second]).type == "numpy.dtype");
    const StateTree objects = tree_of(array(dtype("O8", "|"), {number(1)}, "]" + forge::text("x") + "a"));
    const auto& of_objects = std::get<StateTree::Opaque>(objects[objects.root()]);
    CHECK(std::get<StateTree::Sequence>(objects[of_objects.children[3].second]).items.size() == 1);
    const StateTree derived = tree_of(array(dtype("u1", "|"), {number(1)}, bytes("a"), false, "matrix"));
    const auto& of_class = std::get<StateTree::Opaque>(derived[derived.root()]);
    CHECK(of_class.type == "numpy.matrix");
    CHECK(flatten(derived).tensors.size() == 1);
}

TEST_CASE("scalars have Python's values, to the bit") {
    CHECK(value_of<bool>("b1", "|", "\1", "bool"));
    CHECK(value_of<std::int64_t>("i1", "|", "\xff", "int8") == -1);
    CHECK(value_of<std::int64_t>("u1", "|", "\xff", "uint8") == 255);
    CHECK(value_of<std::int64_t>("i8", "<", "\xfe\xff\xff\xff\xff\xff\xff\xff", "int64") == -2);
    CHECK(value_of<std::int64_t>("i2", ">", "\1\2", ">i2") == 258);
    CHECK(value_of<StateTree::BigInt>("u8", "<", std::string(8, '\xff'), "uint64").decimal == "18446744073709551615");
    CHECK(value_of<double>("f4", "<", "\xcd\xcc\xcc\x3d", "float32") == static_cast<double>(0.1F));
    CHECK(value_of<double>("f8", "<", forge::little(std::bit_cast<std::uint64_t>(-0.1), 8), "float64") == -0.1);
    CHECK(value_of<double>("f2", "<", "\0\x3e"s, "float16") == 1.5);
    CHECK(value_of<double>("f2", "<", "\1\0"s, "float16") == std::ldexp(1.0, -24));
    CHECK(value_of<double>("f2", "<", "\0\xfc"s, "float16") == -std::numeric_limits<double>::infinity());
    const double quiet = value_of<double>("f4", "<", forge::little(0x7FC00001, 4), "float32");
    CHECK(std::bit_cast<std::uint64_t>(quiet) == 0x7FF8000020000000U);
    const double signalling = value_of<double>("f4", "<", forge::little(0xFF800001, 4), "float32");
    CHECK(std::bit_cast<std::uint64_t>(signalling) == 0xFFF0000020000000U);
    const auto complex = value_of<StateTree::Complex>("c8", "<", forge::little(0x40000000'3F800000U, 8), "complex64");
    CHECK(complex.real == 1.0);
    CHECK(complex.imag == 2.0);
    CHECK(value_of<std::string>("U3", "<", "a\0\0\0\x3d\xd8\0\0\0\0\0\0"s, "<U3") == "a\xed\xa0\xbd");
    CHECK(value_of<StateTree::Bytes>("U1", "<", "\0\0\x11\0"s, "<U1").bytes == "\0\0\x11\0"s);
    CHECK(value_of<StateTree::Bytes>("S2", "|", "ab", "|S2").bytes == "ab");
    CHECK(value_of<StateTree::Bytes>("f16", "<", std::string(16, 'x'), "<f16").bytes == std::string(16, 'x'));
}

TEST_CASE("half-precision scalars widen exactly as tensors do") {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto exponent = bits >> 10 & 31;
        const double magnitude = exponent == 0 ? std::ldexp(bits & 1023, -24)
                                               : std::ldexp((bits & 1023) | 1024, static_cast<int>(exponent) - 25);
        if (exponent == 31 || bits % 97 != 0) continue;
        const double wanted = bits >> 15 != 0 ? -magnitude : magnitude;
        CHECK(std::bit_cast<std::uint64_t>(value_of<double>("f2", "<", forge::little(bits, 2), "float16")) ==
              std::bit_cast<std::uint64_t>(wanted));
    }
}

TEST_CASE("dtypes are constants, and dtypes of records are objects") {
    const auto text = [](const std::string& value) {
        const StateTree tree = tree_of(value);
        const auto* found = std::get_if<StateTree::Constant>(&tree[tree.root()]);
        return found != nullptr && found->kind == StateTree::Constant::Kind::numpy_dtype ? found->text : "";
    };
    CHECK(text(dtype("f4")) == "<f4");
    CHECK(text(dtype("i2", ">")) == ">i2");
    CHECK(text(dtype("S5", "|")) == "|S5");
    CHECK(text(dtype("i1", ">")) == "|i1");
    CHECK(text(dtype("f4", "=")) == "<f4");
    CHECK(text(dtype("M8", "<", "NNN",
                     "N" + forge::tuple({bytes("generic"), number(1), number(1), number(1)}) + "\x86")) == "<M8");
    CHECK(text(dtype("M8")) == "");
    CHECK(text(dtype("f")) == "");
    CHECK(text(dtype("fx")) == "");
    CHECK(text(dtype("V8", "|", "N" + forge::tuple({forge::text("x")}) + "}")) == "");
}

}  // namespace numpy_test
