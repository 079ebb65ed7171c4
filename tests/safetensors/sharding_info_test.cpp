// Tests DCP_SHARDING_INFO: what torch writes, what newer writers may add, every fault, and the search for shards by
// content.
#include "safetensors/sharding_info.hpp"

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "safetensors/shard_files.hpp"

#include <set>
#include <vector>

namespace sharding_info_test {

using namespace safemap;
using safetensors::ShardPlace;

namespace {

std::vector<ShardPlace> read(std::string_view text, const std::set<std::string_view>& stored = {"w", "b"}) {
    std::vector<ShardPlace> places;
    safetensors::read_sharding_info(
        text, [&](std::string_view name) { return stored.contains(name); },
        [&](const ShardPlace& place) { places.push_back(place); });
    return places;
}

}  // namespace

TEST_CASE("the places that torch writes are read") {
    const auto places = read(R"({"w": {"saved_offsets": [4, 0]}, "b": {"saved_offsets": []}})");
    REQUIRE(places.size() == 2);
    CHECK(places[0].stored == "w");
    CHECK(places[0].name == "w");
    CHECK(places[0].offsets == Shape{4, 0});
    CHECK_FALSE(places[0].global_shape);
    CHECK(places[1].offsets == Shape{});
    CHECK(read("{}").empty());
}

TEST_CASE("members of newer writers are read, and unknown ones are skipped") {
    const auto places =
        read(R"({"w": {"saved_offsets": [4], "global_shape": [9], "logical_fqn": "layer", "x": {"y": 1}},
                                 "names": {"w": "layer"}, "version": 2, "list": [1, "a"], "nothing": null,
                                 "other": {"saved_offsets": [-1]}})");
    REQUIRE(places.size() == 1);
    CHECK(places[0].stored == "w");
    CHECK(places[0].name == "layer");
    CHECK(places[0].global_shape == Shape{9});

    const auto chunks = read(R"({"layer": [{"saved_offsets": [0], "storage_key": "w"},
                                           {"saved_offsets": [5], "storage_key": "b", "global_shape": null}]})");
    REQUIRE(chunks.size() == 2);
    CHECK(chunks[0].stored == "w");
    CHECK(chunks[0].name == "layer");
    CHECK(chunks[1].stored == "b");
    CHECK(chunks[1].name == "layer");
    CHECK(chunks[1].offsets == Shape{5});
    CHECK_FALSE(chunks[1].global_shape);
}

TEST_CASE("damaged places are refused, with the name of the tensor") {
    const std::vector<std::pair<std::string, Errc>> rows = {
        {R"({"w": {}})", Errc::field_missing},
        {R"({"w": {"offsets": [1]}})", Errc::field_missing},
        {R"({"w": {"saved_offsets": null}})", Errc::field_missing},
        {R"({"w": {"saved_offsets": [0, -4]}})", Errc::piece_outside},
        {R"({"w": {"saved_offsets": [-9223372036854775808]}})", Errc::piece_outside},
        {R"({"w": {"saved_offsets": 4}})", Errc::header_bad_metadata},
        {R"({"w": {"saved_offsets": [1.0]}})", Errc::header_bad_metadata},
        {R"({"w": {"saved_offsets": ["1"]}})", Errc::header_bad_metadata},
        {R"({"w": {"saved_offsets": [18446744073709551616]}})", Errc::header_bad_metadata},
        {R"({"w": {"saved_offsets": [0], "global_shape": "9"}})", Errc::header_bad_metadata},
        {R"({"w": {"saved_offsets": [0], "logical_fqn": 9}})", Errc::header_bad_metadata},
        {R"({"w": {"saved_offsets": [0], "storage_key": 9}})", Errc::header_bad_metadata},
        {R"({"w": 4})", Errc::header_bad_metadata},
    };
    for (const auto& row : rows) {
        CAPTURE(row.first);
        const auto error = error_of([&] { static_cast<void>(read(row.first)); });
        REQUIRE(error.has_value());
        CHECK(error->code() == row.second);
        // A number that no integer can hold ends the reading of all JSON.
        if (row.first.find("18446744073709551616") == std::string::npos) CHECK(error->tensor() == "w");
    }
    CHECK_FAULT(read("[]"), Errc::header_bad_metadata);
    CHECK_FAULT(read("{"), Errc::header_bad_metadata);
    CHECK_FAULT(read(""), Errc::header_bad_metadata);
}

TEST_CASE("what is written is read") {
    const std::vector<ShardPlace> places = {
        {.stored = "w", .name = "w", .offsets = {4, 0}, .global_shape = Shape{9, 3}},
        {.stored = "b", .name = "\"ü\"", .offsets = {}, .global_shape = Shape{}},
    };
    const std::string text = safetensors::write_sharding_info(places);
    CHECK(text == R"({"w": {"saved_offsets": [4, 0], "global_shape": [9, 3]}, )"
                  R"("b": {"saved_offsets": [], "global_shape": [], "logical_fqn": "\"ü\""}})");
    const auto again = read(text);
    REQUIRE(again.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(again[i].stored == places[i].stored);
        CHECK(again[i].name == places[i].name);
        CHECK(again[i].offsets == places[i].offsets);
        CHECK(again[i].global_shape == places[i].global_shape);
    }
}

TEST_CASE("files of any name are shards if two of them hold parts of one tensor") {
    const auto file = [](const std::string& tensor, const std::string& info) {
        const std::string metadata = info.empty() ? "" : R"("__metadata__":{"DCP_SHARDING_INFO":")" + info + "\"},";
        return forge::safetensors(
            "{" + metadata + '"' + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
    };
    const auto at = [](const std::string& tensor, int offset, const std::string& more = {}) {
        return R"({\")" + tensor + R"(\": {\"saved_offsets\": [)" + std::to_string(offset) + "]" + more + "}}";
    };
    const auto found = [](std::map<std::string, std::string> files) {
        const forge::Folder folder(std::move(files));
        return safetensors::shard_files(folder, folder.list(), 100'000'000);
    };
    using Names = std::vector<std::string>;
    const std::string one = file("w", at("w", 0));
    const std::string two = file("w", at("w", 1));
    CHECK(found({{"a.safetensors", one}, {"b.safetensors", two}}) == Names{"a.safetensors", "b.safetensors"});
    CHECK(found({{"a.safetensors", one}, {"b.safetensors", file("w", "")}}).empty());
    CHECK(found({{"a.safetensors", one}, {"b.safetensors", file("v", at("v", 0))}}).empty());
    CHECK(found({{"a.safetensors", one},
                 {"b.safetensors", file("w", "")},
                 {"c.safetensors", two},
                 {"d.safetensors", "no header"},
                 {"e.safetensors", file("v", at("v", 0))},
                 {".f.safetensors", one},
                 {"g.pt", one}}) == Names{"a.safetensors", "c.safetensors", "e.safetensors"});
    // Names of whole tensors count, not those in the file.
    const std::string logical = R"(, \"logical_fqn\": \"w\")";
    CHECK(found({{"a.safetensors", one}, {"b.safetensors", file("w.1", at("w.1", 1, logical))}}).size() == 2);
    // Damaged information is for the reader to report.
    CHECK(found({{"a.safetensors", one}, {"b.safetensors", file("w", "[]")}}).size() == 2);
}

}  // namespace sharding_info_test
