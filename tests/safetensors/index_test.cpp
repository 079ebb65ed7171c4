// Tests reading and writing the index of a sharded checkpoint.
#include "safetensors/index.hpp"

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "temp_dir.hpp"

namespace index_test {

using namespace safemap;
using safetensors::Index;

namespace {

Index read(std::string_view text) {
    ThrowFirst faults;
    return safetensors::read_index(*forge::source(text), faults);
}

using Map = std::vector<std::pair<std::string, std::string>>;
using Views = std::vector<std::pair<std::string_view, std::string_view>>;

Map map_of(const Index& index) {
    Map map;
    for (const auto& place : index.weight_map) map.emplace_back(place.tensor, index.shards[place.shard]);
    return map;
}

std::string mapping_to(std::string_view shard) { return R"({"weight_map":{"w":")" + std::string(shard) + R"("}})"; }

}  // namespace

TEST_CASE("an index is read in the order of the file") {
    const Index index =
        read(R"({"metadata":{"total_size":12,"b":"x","a":"y","n":1,"a":"z"},"weight_map":{"w":"2.st","b":"1.st"}})");
    CHECK(index.total_size == 12U);
    CHECK(index.metadata == Map{{"a", "z"}, {"b", "x"}});
    CHECK(map_of(index) == Map{{"w", "2.st"}, {"b", "1.st"}});
}

TEST_CASE("the last shard of a duplicate tensor counts, at the first position") {
    const Index index = read(R"({"weight_map":{"w":"1","b":"2","w":"3","b":"2","w":"4"}})");
    CHECK(map_of(index) == Map{{"w", "4"}, {"b", "2"}});
    CHECK(index.repeated == std::vector<std::uint32_t>{0, 1, 0});
    CHECK(read(R"({"weight_map":{"w":"1","b":"1"}})").repeated.empty());
}

TEST_CASE("duplicate keys of an index are listed, and the last of each counts") {
    const Index index = read(R"({"weight_map":{"w":"1"},"metadata":{"total_size":1,"total_size":2},"weight_map":)"
                             R"({"b":"2"},"weight_map":{"b":"3"}})");
    CHECK(map_of(index) == Map{{"b", "3"}});
    CHECK(index.total_size == 2U);
    CHECK(index.repeated_keys == std::vector<std::string>{"weight_map", "total_size"});
    CHECK(index.repeated.empty());
    CHECK(read(R"({"metadata":{"metadata":"x"},"weight_map":{"metadata":"1"}})").repeated_keys.empty());
}

TEST_CASE("an index is recognised by its weight_map") {
    const auto told = [](std::string_view text) { return safetensors::is_index(*forge::source(text)); };
    CHECK(told(R"({"weight_map":{}})"));
    CHECK(told(R"( {"metadata":{}, "weight_map":7})"));
    for (const char* text :
         {"", "{", "{}", "[]", R"(["weight_map"])", R"({"x":{"weight_map":{}}})", "{\"weight_map\":"})
        CHECK_FALSE(told(text));
}

TEST_CASE("total_size may be missing, a float, or invalid") {
    CHECK_FALSE(read(R"({"weight_map":{}})").total_size.has_value());
    CHECK_FALSE(read(R"({"metadata":null,"weight_map":{}})").total_size.has_value());
    CHECK(read(R"({"metadata":{"total_size":13476835328.0},"weight_map":{}})").total_size == 13476835328U);
    for (const char* nonsense : {"\"12\"", "-1", "1.5", "1e300", "null"})
        CHECK_FALSE(read(R"({"metadata":{"total_size":)" + std::string(nonsense) + R"(},"weight_map":{}})")
                        .total_size.has_value());
}

TEST_CASE("an invalid index is refused") {
    for (const char* text : {"", "{", "nothing", R"({"weight_map":{"a":"b"}} x)"})
        CHECK_FAULT(read(text), Errc::index_not_json);
    for (const char* text :
         {"[]", "{}", "7", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})", R"({"weight_map":null})"})
        CHECK_FAULT(read(text), Errc::index_bad_field);
}

TEST_CASE("a shard outside the folder is refused, in every spelling") {
    for (const char* shard : {"../x", "..", "a/../../x", "a/..", "/etc/passwd", "/", "C:x", "c:/x", "./C:x", "a/../C:x",
                              "a\\\\b", "..\\\\x", "\\\\\\\\host\\\\x", "", "\\u002e./x", "a\\u0000b"}) {
        CAPTURE(shard);
        CHECK_FAULT(read(mapping_to(shard)), Errc::shard_outside_folder);
    }
    for (const char* shard : {"x", "a/b", "..x", "x..", "a..b/c", "...", "./x"}) {
        CAPTURE(shard);
        CHECK_OK(read(mapping_to(shard)));
    }
}

TEST_CASE("a collecting validator names each invalid entry and keeps the others") {
    CollectFaults faults;
    const Index index =
        safetensors::read_index(*forge::source(R"({"weight_map":{"a":"../x","b":"y","c":5,"d":"/z"}})"), faults);
    REQUIRE(faults.faults().size() == 3);
    CHECK(faults.faults()[0].tensor() == "a");
    CHECK(faults.faults()[1].code() == Errc::index_bad_field);
    CHECK(faults.faults()[2].tensor() == "d");
    CHECK(map_of(index) == Map{{"b", "y"}});
}

TEST_CASE("an index is byte for byte that of huggingface_hub") {
    const std::string first = "model-00001-of-00002.safetensors";
    const std::string second = "model-00002-of-00002.safetensors";
    SUBCASE("with metadata") {
        CHECK(safetensors::write_index(40, Map{{"who", "n\u00e9"}, {"z", "1"}, {"a", "2"}},
                                       Views{{"w.1", first},
                                             {"\u00e9", first},
                                             {"\U0001f600\x7f", first},
                                             {"q\"\\", second},
                                             {"w.2", second}}) ==
              TempDir::read(SAFEMAP_TEST_DATA "/safetensors/hub_metadata.index.json"));
    }
    SUBCASE("without") {
        const std::string a = "model-00001-of-00003.safetensors";
        const std::string b = "model-00002-of-00003.safetensors";
        const std::string c = "model-00003-of-00003.safetensors";
        CHECK(safetensors::write_index(
                  40, {}, Views{{"w.1", a}, {"\u00e9", a}, {"\U0001f600\x7f", b}, {"q\"\\", b}, {"w.2", c}}) ==
              TempDir::read(SAFEMAP_TEST_DATA "/safetensors/hub_plain.index.json"));
    }
    SUBCASE("without tensors") {
        CHECK(safetensors::write_index(0, {}, {}) ==
              "{\n  \"metadata\": {\n    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}");
    }
}

TEST_CASE("an index is byte for byte that of transformers") {
    const std::string first = "model-00001-of-00002.safetensors";
    const std::string second = "model-00002-of-00002.safetensors";
    constexpr std::uint64_t size = (1ULL << 53) + 1;
    // U+FFEE sorts before U+1F600 by bytes and by code points, but not as UTF-16.
    const Views weight_map = {{"w.1", first},    {"\u00e9", first}, {"\U0001f600\x7f", first},
                              {"\uffee", first}, {"q\"\\", second}, {"w.10", second},
                              {"W", second}};
    CHECK(safetensors::write_transformers_index(size, 29, {}, weight_map) ==
          TempDir::read(SAFEMAP_TEST_DATA "/safetensors/transformers_plain.index.json"));
    const Map metadata = {{"who", "n\u00e9\n"}, {"total", ""}, {"total_t", "x"}, {"A", "1"}};
    CHECK(safetensors::write_transformers_index(size, 29, metadata, weight_map) ==
          TempDir::read(SAFEMAP_TEST_DATA "/safetensors/transformers_metadata.index.json"));
    CHECK(safetensors::write_transformers_index(0, 0, {}, {}) ==
          "{\n  \"metadata\": {\n    \"total_parameters\": 0,\n    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}\n");
    const Index index = read(safetensors::write_transformers_index(7, 3, Map{{"b", "\n"}}, Views{{"w", "s"}}));
    CHECK(index.total_size == 7U);
    CHECK(index.metadata == Map{{"b", "\n"}});
    CHECK(map_of(index) == Map{{"w", "s"}});
    CHECK_FAULT(safetensors::write_transformers_index(0, 0, Map{{"k", "\xff"}}, {}), Errc::invalid_argument);
}

TEST_CASE("a written index is read back the same") {
    const Map metadata = {{"a", "\n\"\\"}, {"b", "\U0001f600"}};
    const Index index = read(safetensors::write_index(7, metadata, Views{{"w\x7f", "s"}, {"", "t"}}));
    CHECK(index.total_size == 7U);
    CHECK(index.metadata == metadata);
    CHECK(map_of(index) == Map{{"w\x7f", "s"}, {"", "t"}});
    CHECK_FAULT(safetensors::write_index(0, {}, Views{{"\xff", "s"}}), Errc::invalid_argument);
}

}  // namespace index_test
