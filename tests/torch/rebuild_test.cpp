// Tests the functions that rebuild objects from pickles: their meaning, and which calls are refused, opaque, or kept.
// From top to bottom: bounds and storages, tensors and Parameters, plain values and keys, unknown objects and charges,
// lazy bits, archives, attributes, tensor classes of old versions.
#include "torch/rebuild.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/advanced/structure.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "forge/pickle.hpp"
#include "inspect.hpp"

#include "base/text.hpp"
#include "state/structure.hpp"

#include <limits>
#include <set>

namespace rebuild_test {

using namespace safemap;
using namespace std::string_literals;
using namespace std::string_view_literals;

namespace {

constexpr std::int64_t int64_max = std::numeric_limits<std::int64_t>::max();

/// Returns the tree of a forged archive with sixteen floats in storage 0 and sixteen bytes in storage 1.
StateTree tree_of(const std::string& value) {
    std::string floats;
    for (int i = 0; i < 16; ++i) floats += std::string("\0\0\0", 3) + static_cast<char>(i);
    return fixtures::open(forge::archive(value, {{"0", floats}, {"1", "0123456789abcdef"}})).tree;
}
FlatState flat_of(const std::string& value) { return flatten(tree_of(value)); }

std::string floats() { return forge::storage("FloatStorage", "0", 16); }
std::string in_dict(const std::string& value) { return forge::dict({forge::text("x"), value}); }
std::string one(const std::string& storage, std::int64_t offset, const forge::Numbers& size,
                const forge::Numbers& stride) {
    return in_dict(forge::view(storage, offset, size, stride));
}
std::string number(std::int64_t value) { return forge::integer(value); }

std::string times(std::size_t count, std::string_view what) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += what;
    return out;
}
/// Returns the tree of a pickle without storages, with a memory limit of 4 MiB.
StateTree small_tree_of(const std::string& value) {
    const std::string pickle = forge::pickle(value);
    const auto graph = read_pickle(pickle, {.max_memory = 4 << 20});
    const torch::Storages storages{
        .find = [](std::string_view) -> RecordData { throw Error(Errc::zip_missing_record, "no storage"); }};
    CollectFaults faults;
    return torch::rebuild(graph, storages, faults).tree;
}

template <class T> T root_as(const std::string& value) {
    const StateTree tree = tree_of(value);
    const T* found = std::get_if<T>(&tree[tree.root()]);
    REQUIRE(found != nullptr);
    return *found;
}

}  // namespace

TEST_CASE("bounds are exact to the element, and sums do not wrap") {
    CHECK_OK(flat_of(one(floats(), 0, {4, 4}, {4, 1})));
    CHECK_OK(flat_of(one(floats(), 1, {3, 4}, {4, 1})));
    CHECK_FAULT(flat_of(one(floats(), 1, {4, 4}, {4, 1})), Errc::storage_too_short);
    CHECK_OK(flat_of(one(floats(), 15, {}, {})));
    CHECK_FAULT(flat_of(one(floats(), 16, {}, {})), Errc::storage_too_short);
    CHECK_OK(flat_of(one(floats(), 15, {1'000'000'000}, {0})));
    CHECK_OK(flat_of(one(floats(), int64_max, {0, 5}, {5, 1})));
    CHECK_FAULT(flat_of(one(floats(), 0, {3}, {int64_max})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), int64_max, {1}, {1})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), 1, {2}, {int64_max - 1})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), 0, {std::int64_t{1} << 32, std::int64_t{1} << 32}, {0, 0})),
                Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), 0, {int64_max}, {0})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(floats(), -1, {1}, {1})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(floats(), 0, {-1}, {1})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(floats(), 0, {1}, {-1})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(in_dict(forge::tensor(floats(), 0, {"\x88"}, {number(1)}))), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "0", 17), 0, {17}, {1})), Errc::storage_too_short);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "0", -1), 0, {}, {})), Errc::bad_tensor);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "0", int64_max), 0, {}, {})), Errc::shape_overflow);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "7", 1), 0, {}, {})), Errc::zip_missing_record);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", "../0", 1), 0, {}, {})), Errc::zip_bad_record);
    CHECK_FAULT(flat_of(one(forge::storage("OddStorage", "0", 1), 0, {}, {})), Errc::bad_tensor);
}

TEST_CASE("sixty-four dimensions are read, and sixty-five are refused") {
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
    for (const auto& row : classes) {
        CAPTURE(row.first);
        const auto flat = flat_of(one(forge::storage(row.first, "1", 1), 0, {1}, {1}));
        REQUIRE(flat.tensors.size() == 1);
        CHECK(flat.tensors[0].dtype() == row.second);
    }
}

TEST_CASE("a quantized tensor with several elements per byte has all bytes of its storage, and its view as values") {
    const auto packed = [](std::int64_t offset) {
        return forge::call(
            "torch._utils", "_rebuild_qtensor",
            {forge::storage("QUInt4x2Storage", "1", 9), number(offset), forge::tuple({number(3), number(5)}),
             forge::tuple({number(5), number(1)}),
             forge::tuple({forge::global("torch", "per_channel_affine"), forge::view(floats(), 0, {3}, {1}),
                           forge::view(floats(), 3, {3}, {1}), number(0)}),
             "\x89", forge::ordered()});
    };
    const StateTree tree = tree_of(forge::dict({forge::text("q"), packed(0), forge::text("p"), packed(1)}));
    const auto flat = flatten(tree);
    REQUIRE(flat.tensors.size() == 3);
    CHECK(flat.tensors[0].name() == "q");
    CHECK(flat.tensors[0].dtype() == Dtype::quint4x2);
    CHECK(flat.tensors[0].shape() == Shape{9});
    REQUIRE(flat.skipped.size() == 2);
    CHECK(flat.skipped[0].quantized);
    const std::string why =
        R"("a quantized tensor (per_channel_affine); its parts are kept, its numbers only with a structure document")";
    const std::string parts = R"("size":["t",3,5],"stride":["t",5,1],"scheme":["g","torch.per_channel_affine"],)";
    CHECK(state::structure_of(tree, [](const std::string& name) { return name; }) ==
          R"({"v":2,"root":{"q":["q",{"":["T",{"dtype":"quint4x2"}],"offset":0,)" + parts +
              R"("scales":["T"],"zero_points":["T"],"axis":0},)" + why +
              R"(],"p":["q",{"":["@T","q/~itself"],"offset":1,)" + parts +
              R"("scales":["@T","q/scales"],"zero_points":["@T","q/zero_points"],"axis":0},)" + why + "]}}");
}

TEST_CASE("views of one storage share it, and equal views are ties") {
    const auto flat = flat_of(forge::dict({
        forge::text("a"),
        forge::view(floats(), 0, {4}, {1}),
        forge::text("b"),
        forge::view(floats(), 0, {4}, {1}),
        forge::text("c"),
        forge::view(floats(), 4, {4}, {1}),
    }));
    REQUIRE(flat.tensors.size() == 2);
    CHECK(flat.tensors[0].stored() == flat.tensors[1].stored());
    REQUIRE(flat.aliases.size() == 1);
    CHECK(flat.aliases[0] == AliasGroup{"a", "b"});
}

TEST_CASE("one storage is shared by tensors of all of it, in any shape, and by tensors of parts") {
    const forge::Numbers rows = {4, 4}, row_major = {4, 1}, column_major = {1, 4};
    const auto flat = flat_of(forge::dict({
        forge::text("a"),
        forge::view(floats(), 0, rows, row_major),
        forge::text("b"),
        forge::view(floats(), 0, rows, column_major),
        forge::text("c"),
        forge::view(floats(), 0, {16}, {1}),
        forge::text("d"),
        forge::view(floats(), 0, rows, row_major),
        forge::text("e"),
        forge::view(floats(), 0, {1, 16}, {3, 1}),
        forge::text("f"),
        forge::view(floats(), 12, {2, 2}, {2, 1}),
    }));
    REQUIRE(flat.tensors.size() == 5);
    REQUIRE(flat.aliases.size() == 1);
    CHECK(flat.aliases[0] == AliasGroup{"a", "d"});
    for (const LazyTensor& tensor : flat.tensors) CHECK(tensor.stored() == flat.tensors[0].stored());
    CHECK(flat.tensors[0].shape() == Shape{4, 4});
    CHECK(flat.tensors[0].strided_view().strides == Strides{4, 1});
    CHECK(flat.tensors[1].strided_view().strides == Strides{1, 4});
    CHECK(flat.tensors[2].shape() == Shape{16});
    CHECK(flat.tensors[3].strided_view().strides == Strides{3, 1});
    CHECK(flat.tensors[4].strided_view().offset == 12);
}

TEST_CASE("a storage that the pickle gives two types is refused at each of its tensors, wherever the types are") {
    const auto ints = forge::storage("IntStorage", "0", 16);
    const auto tensor = [](const std::string& storage) { return forge::view(storage, 0, {4}, {1}); };
    const auto check_refused = [](const std::string& value, std::string_view types) {
        check_error(error_of([&] { flat_of(value); }), {Errc::bad_tensor},
                    {"storage '0' has two types, "s.append(types)});
    };
    check_refused(forge::dict({forge::text("a"), tensor(floats()), forge::text("b"), tensor(ints)}),
                  "FloatStorage and IntStorage");
    // torch.load also takes the type of a storage that the pickle drops, and of one that is no tensor's.
    check_refused(ints + "0" + in_dict(tensor(floats())), "IntStorage and FloatStorage");
    check_refused(forge::dict({forge::text("a"), tensor(floats()), forge::text("b"), ints}),
                  "FloatStorage and IntStorage");
    const auto v3 = [](const char* type, const char* dtype) {
        return forge::untyped_view(forge::storage(type, "0", 64), dtype, {4}, {1});
    };
    check_refused(forge::dict({forge::text("a"), v3("UntypedStorage", "float32"), forge::text("b"), tensor(floats())}),
                  "UntypedStorage and FloatStorage");

    // One type, as in files of torch.save: an untyped storage is of bytes, and each tensor of it has a dtype.
    const auto bytes = forge::storage("ByteStorage", "0", 64);
    CHECK(flat_of(forge::dict({forge::text("a"), v3("UntypedStorage", "uint16"), forge::text("b"),
                               v3("UntypedStorage", "uint32"), forge::text("c"), tensor(bytes)}))
              .tensors.size() == 3);
    // torch.save gives two types to storages without bytes.
    const auto empty = [](const char* type) { return forge::view(forge::storage(type, "0", 0), 0, {0}, {1}); };
    const auto flat =
        flat_of(forge::dict({forge::text("a"), empty("FloatStorage"), forge::text("b"), empty("IntStorage")}));
    REQUIRE(flat.tensors.size() == 2);
    CHECK(flat.tensors[0].dtype() == Dtype::f32);
    CHECK(flat.tensors[1].dtype() == Dtype::i32);
    const auto meta = [&](const char* type) { return tensor(forge::storage(type, "0", 16, "meta")); };
    CHECK(flat_of(forge::dict({forge::text("a"), meta("FloatStorage"), forge::text("b"), meta("IntStorage"),
                               forge::text("c"), tensor(floats())}))
              .tensors.size() == 1);
}

TEST_CASE("bytes of an untyped storage have the tensor's dtype") {
    const auto v3 = [](const char* dtype, std::int64_t count, std::int64_t stride = 1) {
        return in_dict(forge::untyped_view(forge::storage("UntypedStorage", "1", 16), dtype, {count}, {stride}));
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

TEST_CASE("tensors from before torch 0.4 are classes with a state") {
    const std::string value =
        in_dict(forge::global("torch", "FloatTensor") + ")\x81" +
                forge::tuple({floats(), number(2), forge::tuple({number(3)}), forge::tuple({number(1)})}) + "b");
    const auto flat = flat_of(value);
    REQUIRE(flat.tensors.size() == 1);
    CHECK(flat.tensors[0].shape() == Shape{3});
}

TEST_CASE("deeply nested Parameters are refused") {
    std::string value = forge::view(floats(), 0, {}, {});
    const auto wrap = [](const std::string& inner) {
        return forge::call("torch._utils", "_rebuild_parameter", {inner, "\x88", forge::ordered()});
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
    const auto flat = flat_of(one(forge::storage("FloatStorage", "99", 4, "meta"), 0, {4}, {1}));
    CHECK(flat.tensors.empty());
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].name == "x");
}

TEST_CASE("Python's plain values are read as they are") {
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
    CHECK(root_as<StateTree::Dict>(forge::call("collections", "OrderedDict", {"]]N\210ea"s.replace(2, 1, "(N")}))
              .items.size() == 1);
}

TEST_CASE("keys that are equal in Python are one entry") {
    const auto dict = root_as<StateTree::Dict>("}(K\1NK\2N\x88K\5U\1aNU\1aK\6u");
    CHECK(dict.items.size() == 3);
    // LONG1 of five in nine bytes, and two to the 64 in nine and in ten.
    const auto longs = root_as<StateTree::Dict>("}(K\5N\x8a\x09\5"s + std::string(8, '\0') + "N\x8a\x09" +
                                                std::string(8, '\0') + "\1N\x8a\x0a" + std::string(8, '\0') +
                                                "\1\0N\x8a\x09"s + std::string(9, '\xff') + "NJ\xff\xff\xff\xffNu");
    CHECK(longs.items.size() == 3);
    const auto flat = flat_of(forge::dict(
        {forge::text("x"), forge::view(floats(), 0, {}, {}), forge::text("x"), forge::view(floats(), 1, {}, {})}));
    REQUIRE(flat.tensors.size() == 1);
    CHECK(flat.tensors[0].strided_view().offset == 1);
}

TEST_CASE("members that are equal in Python are one member of a set") {
    using Sequence = StateTree::Sequence;
    const auto count = [](const std::string& value) { return root_as<Sequence>(value).items.size(); };
    const std::string half = "G\x3f\xe0\0\0\0\0\0\0"s;
    const std::string nan = "G\x7f\xf8\0\0\0\0\0\0"s;
    const std::string pair = "K\1" + forge::text("x") + "\x86";
    for (const char* const how : {"set", "frozenset"}) {
        CAPTURE(how);
        const auto set = [&](const std::string& members) {
            return how == "set"s ? "\x8f(" + members + "\x90" : "(" + members + "\x91";
        };
        CHECK(count(set("K\1K\2K\1")) == 2);
        CHECK(count(set("K\1\x88G\x3f\xf0\0\0\0\0\0\0"s)) == 1);
        CHECK(count(set(forge::text("a") + forge::text("a") + "NN" + half + half)) == 3);
        CHECK(count(set(pair + "\x88" + forge::text("x") + "\x86")) == 1);
        CHECK(count(set(pair + "K\1" + forge::text("y") + "\x86K\1\x85K\1")) == 4);
        CHECK(count(set("(" + pair + "\x85" + pair + "\x85t" + "(" + pair + "\x85" + pair + "\x85t")) == 1);
        CHECK(count(set(nan + nan)) == 2);
        CHECK(count(set(nan + "q\1h\1")) == 1);
        CHECK(count(set(nan + "q\1" + "\x85" + "h\1\x85")) == 1);
        // Objects are equal to themselves only.
        const std::string size = forge::call("torch", "Size", {forge::tuple({number(2)})});
        CHECK(count(set(size + "q\1" + size + "h\1")) == 2);
        const auto named = forge::call("__builtin__", how, {"](K\1K\2K\1e"});
        CHECK(count(named) == 2);
    }
    CHECK(count("](K\1K\1e") == 2);
    CHECK(count("K\1K\1\x86") == 2);
    CHECK(root_as<StateTree::Dict>("}(" + pair + "K\1" + pair + "K\2" + half + "K\1" + half + "K\2u").items.size() ==
          2);
}

TEST_CASE("tuples of a set are compared to a depth that no real file has, in limited memory") {
    const auto nested = [](int levels) { return "K\1" + times(static_cast<std::size_t>(levels), "\x85"); };
    CHECK(root_as<StateTree::Sequence>("(" + nested(8) + nested(8) + "\x91").items.size() == 1);
    CHECK(root_as<StateTree::Sequence>("(" + nested(9) + nested(9) + "\x91").items.size() == 2);
    // Each tuple has the one before eight times.
    std::string wide = "K\1q\1";
    for (int level = 0; level < 8; ++level) wide += "0(" + times(8, "h\1") + "tq\1";
    CHECK_FAULT(small_tree_of(wide + "\x85\x91"s.insert(0, "0(h\1")), Errc::pickle_too_large);
}

TEST_CASE("tensors inside unknown objects are found, under attributes and indices") {
    const std::string tensor = forge::view(floats(), 0, {}, {});
    const std::string object = forge::global("my", "Thing") + forge::tuple({tensor, "N"}) + "\x81" +
                               forge::dict({forge::text("w"), forge::view(floats(), 1, {}, {}), forge::text("0"),
                                            forge::view(floats(), 2, {}, {})}) +
                               "b" + "(" + forge::view(floats(), 3, {}, {}) + "e";
    const auto flat = flat_of(in_dict(object));
    REQUIRE(flat.tensors.size() == 4);
    CHECK(flat.tensors[0].name() == "x/0");
    CHECK(flat.tensors[1].name() == "x/w");
    CHECK(flat.tensors[2].name() == "x/0~01");
    CHECK(flat.tensors[3].name() == "x/0~02");
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].type == "my.Thing");
}

TEST_CASE("a call that runs code is noted at any place") {
    // As an unused argument, a tensor's hooks; and popped off the stack.
    const std::string attack = forge::call("os", "system", {forge::text("true")});
    const std::string tensor =
        forge::call("torch._utils", "_rebuild_tensor_v2", {floats(), number(0), ")", ")", "\x89", attack});
    const auto archive = fixtures::open(forge::archive(attack + "0" + in_dict(tensor), {{"0", std::string(64, 'x')}}));
    CHECK(only_of(archive.notes).find("os.system (2 times)") != std::string::npos);
    CHECK(flatten(archive.tree).tensors.size() == 1);
}

TEST_CASE("memory of shared values is charged for each object that copies them") {
    const std::string thing = forge::global("m", "C") + "q\1" + "0";
    const std::string key = forge::text(std::string(1000, 'k')) + "q\2" + "0";
    CHECK_OK(small_tree_of(thing + key + "(" + times(100, "h\1)R}h\2Nsb") + "l"));
    CHECK_FAULT(small_tree_of(thing + key + "(" + times(3000, "h\1)R}h\2Nsb") + "l"), Errc::pickle_too_large);

    const std::string type = "c" + std::string(1000, 'm') + "\nC\nq\1" + "0";
    CHECK_OK(small_tree_of(type + "(" + times(100, "h\1)R") + "l"));
    CHECK_FAULT(small_tree_of(type + "(" + times(4000, "h\1)R") + "l"), Errc::pickle_too_large);

    const std::string many = "(](" + times(4000, "N") + "etq\2" + "0";
    for (const char* function : {"list", "tuple"}) {
        const std::string made = forge::global("builtins", function) + "q\1" + "0";
        CHECK_FAULT(small_tree_of(made + many + "(" + times(4000, "h\1h\2R") + "l"), Errc::pickle_too_large);
    }
    const std::string state = "}(" + times(500, forge::integer(1) + "N") + "uq\2" + "0";
    CHECK_FAULT(small_tree_of(thing + state + "(" + times(500, "h\1)Rh\2b") + "l"), Errc::pickle_too_large);

    const std::string tensor = forge::global("torch._utils", "_rebuild_tensor_v2") + "q\1" + "0";
    CHECK_OK(small_tree_of(tensor + "(" + times(1000, "h\1)R") + "l"));
    CHECK_FAULT(small_tree_of(tensor + key + "(" + times(3000, "}h\2h\1)Rs") + "l"), Errc::pickle_too_large);
}

TEST_CASE("a long key is not used as an attribute's name, nor in the path of a fault") {
    const std::string value = forge::view(floats(), 0, {}, {});
    for (const std::size_t length : {std::size_t{1024}, std::size_t{1025}}) {
        const std::string key = forge::text(std::string(length, 'k'));
        const std::string name = length == 1024 ? std::string(length, 'k') : "key1";
        const std::string state = forge::dict({forge::text("a"), "N", key, value});
        CHECK(flat_of(in_dict(forge::call("my", "Thing", {}) + state + "b")).tensors.at(0).name() == "x/" + name);
        const auto ordered = root_as<StateTree::Dict>(forge::ordered() + state + "b");
        CHECK(ordered.attributes.at(1).first == name);
        // As the name of a tensor it is kept completely.
        CHECK(flat_of(forge::dict({key, value})).tensors.at(0).name() == std::string(length, 'k'));
    }

    const auto path = [](const std::string& key, std::size_t levels) {
        std::string bad = forge::call("torch._utils", "_rebuild_tensor", {});
        for (std::size_t i = 0; i < levels; ++i) bad = forge::dict({forge::text(key), bad});
        return std::string(error_of([&] { return tree_of(bad); }).value().tensor());
    };
    CHECK(path(std::string(900, 'k'), 2) == std::string(900, 'k') + "/" + std::string(900, 'k'));
    CHECK(path(std::string(900, 'k'), 9) == ".../" + std::string(900, 'k') + "/" + std::string(900, 'k'));
    CHECK(path(std::string(500'000, 'k'), 2) == "~k0/~k0");
}

TEST_CASE("a long key in many places is hashed once") {
    const std::string key = forge::text(std::string(500'000, 'k')) + "q\1" + "0";
    const auto dict = root_as<StateTree::Dict>(key + "}(" + times(200'000, "h\1N") + "u");
    CHECK(dict.items.size() == 1);
}

TEST_CASE("a tensor may be lazily negative only if its dtype can be negated") {
    const auto negative = [](const char* dtype) {
        return in_dict(forge::untyped_view(forge::storage("UntypedStorage", "1", 16), dtype, {1}, {1},
                                           forge::dict({forge::text("neg"), "\x88"})));
    };
    for (const char* dtype : {"float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "complex64"}) {
        CAPTURE(dtype);
        CHECK(flat_of(negative(dtype)).tensors.at(0).decoding().neg);
    }
    for (const char* dtype :
         {"bool", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8"}) {
        CAPTURE(dtype);
        CHECK_FAULT(flat_of(negative(dtype)), Errc::bad_tensor);
    }
}

TEST_CASE("a tensor's key and lazy bits are limited in size, because each tensor reads them again") {
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", std::string(1024, '0'), 1), 0, {}, {})),
                Errc::zip_missing_record);
    CHECK_FAULT(flat_of(one(forge::storage("FloatStorage", std::string(1025, '0'), 1), 0, {}, {})), Errc::bad_tensor);
    const auto with = [](std::size_t bits) {
        std::string metadata = "}(";
        for (std::size_t i = 0; i < bits; ++i) metadata += number(static_cast<std::int64_t>(i)) + "\x88";
        return in_dict(forge::call("torch._utils", "_rebuild_tensor_v2",
                                   {floats(), number(0), ")", ")", "\x89", forge::ordered(), metadata + "u"}));
    };
    CHECK_OK(flat_of(with(64)));
    CHECK_FAULT(flat_of(with(65)), Errc::bad_tensor);
}

TEST_CASE("a deflated pickle is refused if it inflates too far beyond its size in the file") {
    const auto with = [](std::uint64_t size) {
        forge::Zip zip;
        zip.add("a/data.pkl", std::string(100'000, 'x'));
        zip.records[0].method = 8;
        zip.records[0].size = size;
        return zip.join();
    };
    CHECK_FAULT(fixtures::open(with(PickleLimits::least_bytes + 1)), Errc::pickle_too_large);
    CHECK_FAULT(fixtures::open(with(1000)), Errc::inflate_failed);
}

TEST_CASE("an archive must have the records that it states") {
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
    CHECK_FAULT(fixtures::open(with([](Zip& zip) { zip.records[0].name = zip.records[0].local_name = "data.pkl"; })),
                Errc::zip_missing_record);
}

TEST_CASE("other zip files of torch are named") {
    for (const auto& of : {std::pair{"a/archive_format", "torch.export"}, std::pair{"a/model.json", "TorchScript"},
                           std::pair{"a/.data/extern_modules", "torch.package"},
                           std::pair{"serialized_exported_program.json", "torch.export"}}) {
        CAPTURE(of.first);
        forge::Zip zip;
        zip.add(of.first, "pt2");
        try {
            fixtures::open(zip.join());
            FAIL("opened");
        } catch (const Error& error) {
            CHECK(error.code() == Errc::unknown_format);
            CHECK(error.message().find(of.second) != std::string::npos);
            CHECK_FALSE(error.hint().empty());
        }
    }
}

TEST_CASE("the last value set on an object counts, and names are unique") {
    const auto with = [](const std::string& states) { return root_as<StateTree::Dict>(forge::ordered() + states); };
    const auto twice =
        with(forge::dict({forge::text("a"), number(1)}) + "b" + forge::dict({forge::text("a"), number(2)}) + "b");
    REQUIRE(twice.attributes.size() == 1);
    const auto parts_with = [](const std::string& state) {
        const auto object = root_as<StateTree::Opaque>(forge::global("my", "Thing") + ")\x81" + state + "b");
        std::vector<std::string> names;
        for (const auto& child : object.children) names.push_back(child.first);
        return names;
    };
    CHECK(parts_with("N").empty());
    CHECK(parts_with(number(1)) == std::vector<std::string>{"state"});
    const std::string f4 = forge::call("numpy", "dtype", {forge::text("S3"), "\x89", "\x88"});
    const std::string array = forge::call("numpy.core.multiarray", "_reconstruct",
                                          {forge::global("numpy", "ndarray"), forge::tuple({number(0)}), "U\1b"}) +
                              forge::tuple({number(1), forge::tuple({number(1)}), f4, "\x89", "U\3abc"}) + "b";
    const std::string meta = forge::view(forge::storage("FloatStorage", "0", 3, "meta"), 0, {3}, {1});
    const std::string state = forge::dict({forge::text("dtype"), number(7), forge::text("a\0b"sv), number(8)});
    for (const std::string& value : {meta + state + "b", array}) {
        const StateTree tree = tree_of(value);
        const auto& object = std::get<StateTree::Opaque>(tree[tree.root()]);
        std::set<std::string> names;
        for (const auto& [name, child] : object.children) {
            CHECK(names.insert(name).second);
            CHECK(name.find('\0') == name.npos);
        }
        CHECK(names.contains("dtype"));
    }
}

TEST_CASE("a tensor keeps attributes that are set after it is made") {
    const std::string made =
        forge::call("torch._utils", "_rebuild_parameter", {forge::view(floats(), 0, {4}, {1}), "\x88", "N"});
    const auto plain = root_as<StateTree::Tensor>(made + forge::dict({forge::text("note"), number(1)}) + "b");
    CHECK(plain.parameter);
    CHECK(plain.attributes != StateTree::no_node);
    const auto flat =
        flat_of(in_dict(made + forge::dict({forge::text("scale"), forge::view(floats(), 4, {2}, {1})}) + "b"));
    REQUIRE(flat.tensors.size() == 2);
    CHECK(flat.tensors[0].name() == "x");
    CHECK(flat.tensors[1].name() == "x/scale");
}

TEST_CASE("a sparse tensor of a subclass records its class") {
    const std::string part = forge::view(floats(), 0, {2}, {1});
    const std::string layout = forge::call("torch.serialization", "_get_layout", {forge::text("torch.sparse_coo")});
    const std::string arguments = forge::tuple({layout, forge::tuple({part, part, forge::tuple({number(3)})})});
    const auto object = root_as<StateTree::Opaque>(forge::call(
        "torch._tensor", "_rebuild_from_type_v2",
        {forge::global("torch._utils", "_rebuild_sparse_tensor"), forge::global("my", "Sparse"), arguments, "}"}));
    CHECK(object.type == "my.Sparse");
    CHECK(object.form == StateTree::Opaque::Form::object);
}

TEST_CASE("a tensor class with a constructor of its own is an object with parts") {
    const auto made_by = [](const char* module, const char* name, const std::string& arguments) {
        const std::string own = forge::view(floats(), 4, {2}, {1});
        return tree_of(in_dict(
            forge::call("torch._tensor", "_rebuild_from_type_v2",
                        {forge::global(module, name), forge::global("my", "Tensor"), arguments,
                         forge::dict({forge::text("_values"), own, forge::text("mine"), forge::text("kept")})})));
    };
    const std::string tensor = forge::view(floats(), 0, {4}, {1});
    const StateTree jagged =
        made_by("torch.nested._internal.nested_tensor", "_rebuild_njt",
                forge::tuple({forge::dict({forge::text("values"), tensor, forge::text("lengths"), "N"})}));
    CHECK(flatten(jagged).tensors.size() == 1);
    CHECK(flatten(jagged).tensors[0].name() == "x/values");
    CHECK(jagged.find("x/lengths").has_value());
    CHECK(jagged.find("x/mine").has_value());
    const StateTree unknown = made_by("my", "make", forge::tuple({tensor, number(7)}));
    REQUIRE(flatten(unknown).tensors.size() == 2);
    CHECK(flatten(unknown).tensors[0].name() == "x/0");
    CHECK(flatten(unknown).tensors[1].name() == "x/_values");
    CHECK(flatten(unknown).skipped[0].type == "my.Tensor");
    CHECK(flatten(unknown).skipped[0].why.find("my.make") != std::string::npos);
}

TEST_CASE("Variables and Parameters from before torch 0.4 are the tensors inside them") {
    const std::string inner = forge::view(floats(), 4, {2}, {1});
    const std::string hooks = forge::ordered();
    for (const std::string& value : {forge::call("torch.autograd.variable", "Variable", {inner, "\x88", "\x89", hooks}),
                                     forge::call("torch.autograd.variable", "Variable", {}) +
                                         forge::tuple({inner, "N", hooks, "\x88", "\x89"}) + "b",
                                     forge::call("torch.nn.parameter", "Parameter", {}) +
                                         forge::tuple({inner, "N", hooks, "\x88", "\x89"}) + "b"}) {
        CAPTURE(value);
        const auto tensor = root_as<StateTree::Tensor>(value);
        CHECK(tensor.tensor.shape() == Shape{2});
        CHECK(tensor.tensor.strided_view().offset == 4);
        CHECK(tensor.requires_grad);
        CHECK(tensor.parameter == (value.find("Parameter") != value.npos));
    }
    const std::string of_view =
        forge::tuple({floats(), number(1), forge::tuple({number(3)}), forge::tuple({number(1)})});
    CHECK(root_as<StateTree::Tensor>(forge::call("torch._tensor", "Tensor", {}) + of_view + "b").tensor.shape() ==
          Shape{3});
    std::string nested = inner;
    for (int i = 0; i < 20; ++i)
        nested = forge::call("torch.autograd.variable", "Variable", {nested, "\x88", "\x89", hooks});
    CHECK_FAULT(flat_of(nested), Errc::bad_tensor);
}

TEST_CASE("a tensor of a device that was saved through NumPy is a tensor") {
    const std::string f4 = forge::call("numpy", "dtype", {forge::text("f4"), "\x89", "\x88"});
    const std::string array = forge::call("numpy.core.multiarray", "_reconstruct",
                                          {forge::global("numpy", "ndarray"), forge::tuple({number(0)}), "U\1b"}) +
                              forge::tuple({number(1), forge::tuple({number(2)}), f4, "\x89", "U\10abcdefgh"}) + "b";
    const auto made = [&](const char* function, const char* dtype) {
        return tree_of(in_dict(forge::call("torch._utils", function,
                                           {array, forge::global("torch", dtype), forge::text("xla:0"), "\x89"})));
    };
    for (const char* function : {"_rebuild_device_tensor_from_numpy", "_rebuild_xla_tensor"}) {
        CAPTURE(function);
        const auto tree = made(function, "float32");
        const auto* tensor = std::get_if<StateTree::Tensor>(&tree[*tree.find("x")]);
        REQUIRE(tensor != nullptr);
        CHECK(!tensor->numpy);
        CHECK(tensor->tensor.dtype() == Dtype::f32);
        CHECK(tensor->tensor.shape() == Shape{2});
        const auto other = made(function, "bfloat16");
        CHECK(std::holds_alternative<StateTree::Opaque>(other[*other.find("x")]));
        CHECK(flatten(other).tensors.size() == 1);
    }
}

TEST_CASE("names in a pickle that are not UTF-8 are escaped in the document") {
    const std::string module = "\x8c\x03\xed\xa0\x80", name = "\x8c\x01x";
    for (const std::string& value :
         {module + name + "\x93", forge::call("torch", "device", {forge::text("\xed\xa0\x80")}),
          module + name + "\x93)\x81"}) {
        const auto tree = tree_of(in_dict(value));
        const std::string document = state::structure_of(tree, [](const std::string&) { return std::nullopt; });
        CAPTURE(document);
        CHECK(is_utf8(document));
        CHECK(document.find("xed") != std::string::npos);
        CHECK_OK(state::unflatten(document, [](const std::string&) { return nullptr; }));
    }
}

TEST_CASE("a tensor on the meta device keeps all that torch rebuilds it from, also in a structure document") {
    const auto no_storage = [](const char* requires_grad) {
        return forge::call("torch._utils", "_rebuild_meta_tensor_no_storage",
                           {forge::global("torch", "bfloat16"), forge::tuple({number(5), number(3)}),
                            forge::tuple({number(1), number(5)}), requires_grad});
    };
    const auto in_storage = [](const char* requires_grad) {
        return forge::call(
            "torch._utils", "_rebuild_tensor_v2",
            {forge::storage("BFloat16Storage", "0", 17, "meta"), number(2), forge::tuple({number(5), number(3)}),
             forge::tuple({number(1), number(5)}), requires_grad, forge::ordered()});
    };
    const auto parameter = [](const std::string& tensor) {
        return forge::call("torch._utils", "_rebuild_parameter", {tensor, "\x88", forge::ordered()});
    };
    struct Case {
        std::string value;
        bool requires_grad;
    };
    for (const Case& each : {Case{no_storage("\x89"), false}, Case{no_storage("\x88"), true},
                             Case{in_storage("\x89"), false}, Case{in_storage("\x88"), true},
                             Case{parameter(no_storage("\x89")), true}, Case{parameter(in_storage("\x89")), true}}) {
        const StateTree tree = tree_of(in_dict(each.value));
        const std::string document = state::structure_of(tree, [](const std::string&) { return std::nullopt; });
        CHECK(document.find(R"({"x":["o","torch.Tensor",["t"],{"dtype":["dtype","bfloat16"],)") != document.npos);
        const StateTree again = state::unflatten(document, [](const std::string&) { return nullptr; });
        for (const StateTree* const found : {&tree, &again}) {
            const auto at = [&](const std::string& path) -> const StateTree::Node& {
                const auto node = found->find("x/" + path);
                REQUIRE(node);
                return (*found)[*node];
            };
            const auto numbers = [&](const std::string& path) {
                std::vector<std::int64_t> out;
                for (const StateTree::NodeId item : std::get<StateTree::Sequence>(at(path)).items)
                    out.push_back(std::get<std::int64_t>((*found)[item]));
                return out;
            };
            CHECK(std::get<StateTree::Constant>(at("device")).kind == StateTree::Constant::Kind::device);
            CHECK(std::get<StateTree::Constant>(at("device")).text == "meta");
            CHECK(std::get<StateTree::Constant>(at("dtype")).text == "bfloat16");
            CHECK(numbers("size") == std::vector<std::int64_t>{5, 3});
            CHECK(numbers("stride") == std::vector<std::int64_t>{1, 5});
            CHECK(std::get<bool>(at("requires_grad")) == each.requires_grad);
            CHECK(found->find("x/parameter").has_value() == (each.value.find("_rebuild_parameter") != each.value.npos));
            CHECK(found->find("x/storage_offset").has_value() == (each.value.find("_v2") != each.value.npos));
        }
    }
}

TEST_CASE("a tensor without elements keeps the strides and the offset that torch wrote") {
    const auto view_of = [](std::int64_t offset, const forge::Numbers& size, const forge::Numbers& stride) {
        const StateTree tree = tree_of(one(floats(), offset, size, stride));
        const LazyTensor tensor = std::get<StateTree::Tensor>(tree[*tree.find("x")]).tensor;
        CHECK(tensor.load().nbytes() == 0);
        const TensorView view = tensor.view();
        CHECK(view.strides() == tensor.strided_view().strides);
        CHECK(tensor.slice({{.start = 1, .step = 3}}).load().nbytes() == 0);
        return tensor.strided_view();
    };
    const StridedView part = view_of(8, {6, 0}, {8, 1});
    CHECK(part.strides == Strides{8, 1});
    CHECK(part.offset == 8);
    CHECK(view_of(0, {3, 0, 2}, {2, 2, 1}).strides == Strides{2, 2, 1});
    CHECK(view_of(0, {0, 5}, {1, 7}).strides == Strides{1, 7});
    CHECK(view_of(int64_max, {0, 5}, {int64_max, int64_max}).strides == Strides{int64_max, int64_max});

    const auto strides_in = [](const std::string& file, const std::string& path) {
        const StateTree tree = fixtures::open(fixtures::content(file)).tree;
        return std::get<StateTree::Tensor>(tree[*tree.find(path)]).tensor.strided_view().strides;
    };
    CHECK(strides_in("strided.pt", "empty_of_base") == Strides{8, 1});
}

TEST_CASE("an object keeps its constructor arguments") {
    const auto object = root_as<StateTree::Opaque>(forge::call("my_model", "Point", {number(1), forge::text("a")}) +
                                                   forge::dict({forge::text("0"), number(5)}) + "b");
    CHECK(object.arguments == 2);
    REQUIRE(object.children.size() == 3);
    CHECK(object.children[0].first == "0");
    CHECK(object.children[1].first == "1");
    CHECK(object.children[2].first == "0~1");
}

}  // namespace rebuild_test
