// Tests reading a model's expectations from JSON, valid, invalid and hostile, and from checkpoints.
#include "check_error.hpp"
#include "forge/containers.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/plan.hpp>

namespace expected_test {

using namespace safemap;
using namespace containers;

namespace {

/// Returns the error code for a tensor "w" with this description.
Errc fault_of(const std::string& tensor) {
    const auto error =
        error_of([&] { return parse_expected(R"({"v":{"dtype":"F32","shape":[]},"w":)" + tensor + "}"); });
    REQUIRE(error);
    CHECK(error->tensor() == "w");
    return error->code();
}

std::string repeated(std::string_view text, std::size_t times) {
    std::string all;
    for (std::size_t i = 0; i < times; ++i) all += text;
    return all;
}

}  // namespace

TEST_CASE("JSON is read in order, with every spelling of a dtype") {
    const auto expected = parse_expected(R"(
        {"w": {"dtype": "BF16", "shape": [2, 3]}, "b": {"shape": [], "dtype": "bfloat16"},
         "h": {"dtype": "torch.float32", "shape": [0, 18446744073709551615], "nbytes": 0, "more": [{}]},
         "t": {"dtype": "bf16", "shape": [2, 3], "alias_of": "w"}, "": {"dtype": "complex128", "shape": [1]}})");
    REQUIRE(expected.size() == 5);
    CHECK(expected[0].name == "w");
    CHECK(expected[0].dtype == Dtype::bf16);
    CHECK(expected[0].shape == Shape{2, 3});
    CHECK(expected[0].alias_of.empty());
    CHECK(expected[1].shape.empty());
    CHECK(expected[2].dtype == Dtype::f32);
    CHECK(expected[2].shape == Shape{0, UINT64_MAX});
    CHECK(expected[3].alias_of == "w");
    CHECK(expected[4].name.empty());
    CHECK(expected[4].dtype == Dtype::c128);
    CHECK(parse_expected("{}").empty());
}

TEST_CASE("the header of a safetensors file is an expectation") {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    const auto expected = parse_expected(header);
    REQUIRE(expected.size() == 1);
    CHECK(expected[0].name == "w");
}

TEST_CASE("JSON that is not an object of tensors is refused") {
    for (const char* text : {"", " ", "{", "[]", "null", "7", R"("w")", R"({"w":})", R"({"w":{}},)", "{'w':1}", "\xff",
                             R"({"w":{"dtype":"F32","shape":[18446744073709551616]}})", "{\"\x01\":1}"}) {
        CAPTURE(text);
        CHECK_FAULT(parse_expected(text), Errc::expectation_not_json);
    }
    CHECK_FAULT(parse_expected(repeated(R"({"w":)", 5000) + "1" + repeated("}", 5000)), Errc::expectation_not_json);
    CHECK_FAULT(parse_expected(R"({"w":)" + repeated("[", 100'000)), Errc::expectation_not_json);
}

TEST_CASE("an invalid tensor description is refused with its name") {
    using enum Errc;
    for (const char* tensor :
         {"null", "7", "[]", R"("F32")", "{}", R"({"dtype":"F32"})", R"({"shape":[1]})", R"({"dtype":7,"shape":[1]})",
          R"({"dtype":null,"shape":[1]})", R"({"dtype":"F32","shape":1})", R"({"dtype":"F32","shape":null})",
          R"({"dtype":"F32","shape":[-1]})", R"({"dtype":"F32","shape":[1.0]})", R"({"dtype":"F32","shape":[1e3]})",
          R"({"dtype":"F32","shape":["1"]})", R"({"dtype":"F32","shape":[true]})", R"({"dtype":"F32","shape":[[1]]})",
          R"({"dtype":"F32","shape":[1],"alias_of":7})", R"({"dtype":"F32","shape":[1],"alias_of":"nobody"})"}) {
        CAPTURE(tensor);
        CHECK(fault_of(tensor) == expectation_bad_field);
    }
    CHECK(fault_of(R"({"dtype":"F31","shape":[1]})") == unknown_dtype);
    CHECK(fault_of(R"({"dtype":"","shape":[1]})") == unknown_dtype);
    CHECK(fault_of(R"({"dtype":"F32","shape":[4294967296,4294967296]})") == shape_overflow);
    CHECK(fault_of(R"({"dtype":"F64","shape":[2305843009213693952]})") == shape_overflow);
    CHECK(fault_of(R"({"dtype":"F4","shape":[3]})") == partial_byte);
    CHECK(fault_of(R"({"dtype":"F32","shape":[]},"w":{"dtype":"F32","shape":[]})") == expectation_bad_field);
    CHECK(fault_of(R"({"dtype":"F32","shape":[],"alias_of":"x"},"x":{"dtype":"F32","shape":[],"alias_of":"v"})") ==
          expectation_bad_field);
}

TEST_CASE("a shape of a hundred thousand ones is valid") {
    const auto expected = parse_expected(R"({"w":{"dtype":"U8","shape":[1)" + repeated(",1", 99'999) + "]}}");
    CHECK(expected[0].shape.size() == 100'000);
}

TEST_CASE("expectations passed by a program are checked like JSON") {
    const auto plan = [](std::vector<ExpectedTensor> expected) {
        return plan_load(checkpoint_of(containers::safetensors({})), expected);
    };
    CHECK_FAULT(plan({{"w", Dtype::f32, {}}, {"w", Dtype::f32, {}}}), Errc::expectation_bad_field);
    CHECK_FAULT(plan({{"w", Dtype::f32, {}, "v"}}), Errc::expectation_bad_field);
    CHECK_FAULT(plan({{"w", Dtype::f32, {UINT64_MAX, 2}}}), Errc::shape_overflow);
    CHECK_FAULT(plan({{"w", Dtype::f6_e2m3, {1}}}), Errc::partial_byte);
}

TEST_CASE("a checkpoint as an expectation has all its names, including ties") {
    const auto checkpoint = checkpoint_of(
        containers::pt({{"wte", Dtype::f32, {1}, "1234"}, {"b", Dtype::u8, {2}, "ab"}}, {{"head", "wte"}}));
    const auto expected = expected_tensors(checkpoint);
    REQUIRE(expected.size() == 3);
    CHECK(expected[0].name == "wte");
    CHECK(expected[0].alias_of.empty());
    CHECK(expected[1].name == "head");
    CHECK(expected[1].alias_of == "wte");
    CHECK(expected[2].dtype == Dtype::u8);
    CHECK(expected[2].shape == Shape{2});
    CHECK(expected[2].alias_of.empty());

    const auto selected = expected_tensors(checkpoint, Selection::glob("head"));
    REQUIRE(selected.size() == 1);
    CHECK(selected[0].alias_of.empty());
}

TEST_CASE("a path can be JSON of tensors, or any checkpoint") {
    const TempDir dir;
    const std::vector<Sample> samples = {{"w", Dtype::u8, {2}, "ab"}};
    const std::string json = R"({"w":{"dtype":"U8","shape":[2]}})";
    const auto names_at = [&](const std::filesystem::path& path) {
        const auto expected = read_expected(path);
        REQUIRE(expected.size() == 1);
        CHECK(expected[0].name == "w");
        CHECK(expected[0].shape == Shape{2});
        CHECK(plan_load(checkpoint_of(containers::pt(samples)), path).ok());
    };
    names_at(dir.write("model.json", " \n" + json));
    names_at(dir.write("model", json));
    names_at(dir.write("w.safetensors", containers::safetensors(samples)));
    names_at(dir.write("w.pt", containers::pt(samples)));
    names_at(write_shards(dir, samples));
    const TempDir folder;
    folder.write("model.safetensors", containers::safetensors(samples));
    names_at(folder.path());

    const auto error =
        error_of([&] { return read_expected(dir.write("bad.json", R"({"w":{"dtype":"U9","shape":[2]}})")); });
    check_error(error, {Errc::unknown_dtype}, {});
    CHECK(error->path().ends_with("bad.json"));
    CHECK_FAULT(read_expected(dir.write("list.json", "[1]")), Errc::expectation_not_json);
    CHECK_FAULT(read_expected(dir.write("text", "w F32")), Errc::unknown_format);
    CHECK_FAULT(read_expected(dir.path() / "nowhere"), Errc::path_not_found);
    // A damaged file is reported as the format that its name states.
    CHECK_FAULT(read_expected(dir.write("w.index.json", json)), Errc::index_bad_field);
    CHECK_FAULT(read_expected(dir.write("x.safetensors", json)), Errc::header_too_large);
    const auto large = dir.write("large.json", json);
    std::filesystem::resize_file(large, (32 << 20) + 1);
    CHECK_FAULT(read_expected(large), Errc::expectation_not_json);
}

}  // namespace expected_test
