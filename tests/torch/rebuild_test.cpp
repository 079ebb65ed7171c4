// What the functions of the table mean, and what is refused, opaque, or kept.
#include "torch/rebuild.hpp"

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge.hpp"

#include <limits>

using namespace safemap;

namespace {

constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();

/// The tree of a forged archive with sixteen floats in storage 0 and sixteen bytes in storage 1.
StateTree tree_of(const std::string& value) {
    std::string floats;
    for (int i = 0; i < 16; ++i) floats += std::string("\0\0\0", 3) + static_cast<char>(i);
    return fixtures::open(forge::archive(value, {{"0", floats}, {"1", "0123456789abcdef"}})).tree;
}
FlatState flat_of(const std::string& value) { return flatten(tree_of(value)); }

std::string floats() { return forge::storage("FloatStorage", "0", 16); }
std::string in_dict(const std::string& value) { return forge::dict({forge::text("x"), value}); }
std::string one(const std::string& storage, std::int64_t offset, std::initializer_list<std::string> size,
                std::initializer_list<std::string> stride) {
    return in_dict(forge::tensor(storage, offset, size, stride));
}
std::string number(std::int64_t value) { return forge::integer(value); }

template <class T> T root_as(const std::string& value) {
    const StateTree tree = tree_of(value);
    const T* found = std::get_if<T>(&tree[tree.root()]);
    REQUIRE(found != nullptr);
    return *found;
}

}  // namespace

TEST_CASE("bounds are exact to the element, and no sum wraps") {
    CHECK_OK(flat_of(one(floats(), 0, {number(4), number(4)}, {number(4), number(1)})));
    CHECK_OK(flat_of(one(floats(), 1, {number(3), number(4)}, {number(4), number(1)})));
    CHECK_FAULT(flat_of(one(floats(), 1, {number(4), number(4)}, {number(4), number(1)})), Errc::storage_too_short);
    CHECK_OK(flat_of(one(floats(), 15, {}, {})));
    CHECK_FAULT(flat_of(one(floats(), 16, {}, {})), Errc::storage_too_short);
    CHECK_OK(flat_of(one(floats(), 15, {number(1'000'000'000)}, {number(0)})));
    CHECK_OK(flat_of(one(floats(), int64_max, {number(0), number(5)}, {number(5), number(1)})));
    CHECK_FAULT(flat_of(one(floats(), 0, {number(3)}, {number(int64_max)})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), int64_max, {number(1)}, {number(1)})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), 1, {number(2)}, {number(int64_max - 1)})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), 0, {number(std::int64_t{1} << 32), number(std::int64_t{1} << 32)},
                            {number(0), number(0)})),
                Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), 0, {number(int64_max)}, {number(0)})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), -1, {number(1)}, {number(1)})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(floats(), 0, {number(-1)}, {number(1)})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(floats(), 0, {number(1)}, {number(-1)})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(floats(), 0, {"\x88"}, {number(1)})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "0", 17), 0, {number(17)}, {number(1)})),
                Errc::storage_too_short);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "0", -1), 0, {}, {})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "0", int64_max), 0, {}, {})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "7", 1), 0, {}, {})), Errc::zip_missing_record);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "../0", 1), 0, {}, {})), Errc::zip_bad_record);
    CHECK_FAULT(flat_of(one(forge::storage("OddStorage", "0", 1), 0, {}, {})), Errc::bad_tensor);
}

TEST_CASE("sixty-four dimensions are read, one more is refused") {
    const auto ones = [](std::size_t count) {
        std::string items = "(";
        for (std::size_t i = 0; i < count; ++i) items += "K\1";
        return items + "t";
    };
    const auto with = [&](std::size_t count) {
        return in_dict(forge::call("torch._utils", "_rebuild_tensor", {floats(), number(0), ones(count), ones(count)}));
    };
    CHECK(flat_of(with(64)).tensors[0].shape().size() == 64);
    CHECK_FAULT(flat_of(with(65)), Errc::bad_tensor);
}

TEST_CASE("every storage class has its dtype") {
    const std::pair<const char*, Dtype> classes[]{
        {"FloatStorage", Dtype::f32},    {"HalfStorage", Dtype::f16},         {"BFloat16Storage", Dtype::bf16},
        {"DoubleStorage", Dtype::f64},   {"LongStorage", Dtype::i64},         {"IntStorage", Dtype::i32},
        {"ShortStorage", Dtype::i16},    {"CharStorage", Dtype::i8},          {"ByteStorage", Dtype::u8},
        {"BoolStorage", Dtype::boolean}, {"ComplexFloatStorage", Dtype::c64}, {"ComplexDoubleStorage", Dtype::c128},
        {"QInt8Storage", Dtype::qint8},  {"QUInt8Storage", Dtype::quint8},    {"QInt32Storage", Dtype::qint32},
        {"UntypedStorage", Dtype::u8}};
    for (const auto& [name, dtype] : classes) {
        CAPTURE(name);
        const auto flat = flat_of(one(forge::storage(name, "1", 1), 0, {number(1)}, {number(1)}));
        REQUIRE(flat.tensors.size() == 1);
        CHECK(flat.tensors[0].dtype() == dtype);
    }
}

TEST_CASE("views of one storage share it, and equal ones are ties") {
    const auto flat = flat_of(forge::dict({
        forge::text("a"),
        forge::tensor(floats(), 0, {number(4)}, {number(1)}),
        forge::text("b"),
        forge::tensor(floats(), 0, {number(4)}, {number(1)}),
        forge::text("c"),
        forge::tensor(floats(), 4, {number(4)}, {number(1)}),
    }));
    REQUIRE(flat.tensors.size() == 2);
    CHECK(flat.tensors[0].stored() == flat.tensors[1].stored());
    REQUIRE(flat.aliases.size() == 1);
    CHECK(flat.aliases[0] == AliasGroup{"a", "b"});
}

TEST_CASE("bytes of an untyped storage are what the tensor says they are") {
    const auto v3 = [](const char* dtype, std::int64_t count, std::int64_t stride = 1) {
        return in_dict(forge::call("torch._utils", "_rebuild_tensor_v3",
                                   {forge::storage("UntypedStorage", "1", 16), number(0), forge::tuple({number(count)}),
                                    forge::tuple({number(stride)}), "\x89",
                                    forge::call("collections", "OrderedDict", {}), forge::global("torch", dtype)}));
    };
    CHECK(flat_of(v3("uint16", 8)).tensors[0].dtype() == Dtype::u16);
    CHECK_FAULT(flat_of(v3("uint16", 9)), Errc::storage_too_short);
    const auto float4 = flat_of(v3("float4_e2m1fn_x2", 16));
    CHECK(float4.tensors[0].dtype() == Dtype::f4);
    CHECK(float4.tensors[0].shape() == Shape{32});
    CHECK_FAULT(flat_of(v3("float4_e2m1fn_x2", 17)), Errc::storage_too_short);
    CHECK_FAULT(flat_of(v3("float4_e2m1fn_x2", 4, 2)), Errc::bad_tensor);
    CHECK_FAULT(flat_of(v3("no_such_dtype", 1)), Errc::bad_tensor);
}

TEST_CASE("tensors before torch 0.4 are classes with a state") {
    const std::string value =
        in_dict(forge::global("torch", "FloatTensor") + ")\x81" +
                forge::tuple({floats(), number(2), forge::tuple({number(3)}), forge::tuple({number(1)})}) + "b");
    const auto flat = flat_of(value);
    REQUIRE(flat.tensors.size() == 1);
    CHECK(flat.tensors[0].shape() == Shape{3});
}

TEST_CASE("parameters in parameters end") {
    std::string value = forge::tensor(floats(), 0, {}, {});
    const auto wrap = [](const std::string& inner) {
        return forge::call("torch._utils", "_rebuild_parameter",
                           {inner, "\x88", forge::call("collections", "OrderedDict", {})});
    };
    const StateTree tree = tree_of(wrap(value));
    const auto& tensor = std::get<StateTree::Tensor>(tree[tree.root()]);
    CHECK(tensor.parameter);
    CHECK(tensor.requires_grad);
    std::string calls, tails;
    for (int i = 0; i < 100'000; ++i) {
        calls += forge::global("torch._utils", "_rebuild_parameter") + "(";
        tails += "\x88NtR";
    }
    CHECK_FAULT(tree_of(calls + value + tails), Errc::bad_tensor);
}

TEST_CASE("tensors on the meta device have no data and no name") {
    const auto flat = flat_of(one(forge::storage("FloatStorage", "99", 4, "meta"), 0, {number(4)}, {number(1)}));
    CHECK(flat.tensors.empty());
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].name == "x");
}

TEST_CASE("Python's own values are what they are") {
    using namespace std::string_literals;
    using Sequence = StateTree::Sequence;
    CHECK(root_as<Sequence>(forge::call("torch", "Size", {forge::tuple({number(2)})})).kind == Sequence::Kind::size);
    CHECK(root_as<Sequence>(forge::call("__builtin__", "set", {"]"})).kind == Sequence::Kind::set);
    CHECK(root_as<StateTree::Complex>(
              forge::call("__builtin__", "complex", {"G\x3f\xf0\0\0\0\0\0\0"s, "G\0\0\0\0\0\0\0\0"s}))
              .real == 1.0);
    CHECK(root_as<StateTree::Constant>(forge::call("torch", "device", {forge::text("cuda"), number(1)})).text ==
          "cuda:1");
    CHECK(root_as<StateTree::Constant>(forge::global("torch", "float32")).text == "float32");
    CHECK(root_as<StateTree::Constant>(forge::global("my", "Class")).kind == StateTree::Constant::Kind::other);
    const auto bytes = root_as<StateTree::Bytes>(
        forge::call("_codecs", "encode", {forge::text("a\xc3\xbf\xc2\x80"), forge::text("latin1")}));
    CHECK(bytes.bytes == "a\xff\x80");
    CHECK(root_as<StateTree::Bytes>(forge::call("__builtin__", "bytes", {})).bytes.empty());
    CHECK(root_as<StateTree::Bytes>(
              forge::call("__builtin__", "bytearray",
                          {forge::call("_codecs", "encode", {forge::text("x"), forge::text("latin1")})}))
              .mutable_array);
    CHECK(root_as<StateTree::Opaque>(
              forge::call("_codecs", "encode", {forge::text("\xe6\xbc\xa2"), forge::text("latin1")}))
              .type == "_codecs.encode");
    CHECK(root_as<StateTree::Dict>(forge::call("collections", "OrderedDict",
                                               {"]]N\x88"
                                                "ea"s.replace(2, 1, "(N")}))
              .items.size() == 1);
}

TEST_CASE("keys that Python takes for the same are one entry") {
    const auto dict = root_as<StateTree::Dict>("}(K\1NK\2N\x88K\5U\1aNU\1aK\6u");
    CHECK(dict.items.size() == 3);
    const auto flat = flat_of(forge::dict(
        {forge::text("x"), forge::tensor(floats(), 0, {}, {}), forge::text("x"), forge::tensor(floats(), 1, {}, {})}));
    REQUIRE(flat.tensors.size() == 1);
    CHECK(flat.tensors[0].strided_view().offset == 1);
}

TEST_CASE("tensors inside unknown objects are found, under attributes and places") {
    const std::string tensor = forge::tensor(floats(), 0, {}, {});
    const std::string object = forge::global("my", "Thing") + forge::tuple({tensor, "N"}) + "\x81" +
                               forge::dict({forge::text("w"), forge::tensor(floats(), 1, {}, {}), forge::text("0"),
                                            forge::tensor(floats(), 2, {}, {})}) +
                               "b" + "(" + forge::tensor(floats(), 3, {}, {}) + "e";
    const auto flat = flat_of(in_dict(object));
    REQUIRE(flat.tensors.size() == 4);
    CHECK(flat.tensors[0].name() == "x/0");
    CHECK(flat.tensors[1].name() == "x/w");
    CHECK(flat.tensors[2].name() == "x/0~01");
    CHECK(flat.tensors[3].name() == "x/0~02");
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].type == "my.Thing");
}

TEST_CASE("a call that runs code is noted wherever it stands") {
    // As an argument of a tensor's hooks, which nothing else looks at; and popped off the stack.
    const std::string attack = forge::call("os", "system", {forge::text("true")});
    const std::string tensor =
        forge::call("torch._utils", "_rebuild_tensor_v2", {floats(), number(0), ")", ")", "\x89", attack});
    const auto archive = fixtures::open(forge::archive(attack + "0" + in_dict(tensor), {{"0", std::string(64, 'x')}}));
    REQUIRE(archive.notes.size() == 1);
    CHECK(archive.notes[0].find("os.system (2 times)") != std::string::npos);
    CHECK(flatten(archive.tree).tensors.size() == 1);
}

TEST_CASE("archives must be what they say") {
    using forge::Zip;
    const auto with = [](auto change) {
        Zip zip;
        zip.add("a/data.pkl", forge::pickle("}"));
        change(zip);
        return zip.join();
    };
    CHECK_OK(fixtures::open(with([](Zip&) {})));
    CHECK_OK(fixtures::open(with([](Zip& zip) { zip.add("a/byteorder", "big"); })));
    CHECK_FAULT(fixtures::open(with([](Zip& zip) { zip.add("a/byteorder", "Little"); })), Errc::zip_bad_record);
    CHECK_FAULT(fixtures::open(with([](Zip& zip) { zip.add("b/data/0", "x"); })), Errc::zip_bad_record);
    CHECK_FAULT(fixtures::open(with([](Zip& zip) { zip.add("a/constants.pkl", "x"); })), Errc::unknown_format);
    CHECK_FAULT(fixtures::open(with([](Zip& zip) { zip.records[0].name = zip.records[0].local_name = "data.pkl"; })),
                Errc::zip_missing_record);
}
