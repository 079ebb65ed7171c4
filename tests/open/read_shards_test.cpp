// Tests that an index and its shards agree.
#include "open/read.hpp"

#include "base/folder.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "inspect.hpp"

namespace read_shards_test {

using namespace safemap;
using state::Contents;

namespace {

using Files = std::map<std::string, std::string>;

Contents read(Files files, FaultSink& faults, unsigned threads = 0) {
    const forge::Folder folder(std::move(files));
    return open::read_shards(folder, folder.open("index"), {.work = {.threads = threads}}, faults);
}

Contents read(Files files) {
    ThrowFirst faults;
    return read(std::move(files), faults);
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("tensors are ordered by shard file name, then by offset, whatever the index says") {
    const Contents contents =
        read({{"index", R"({"metadata":{"total_size":6},"weight_map":{"c":"2","a":"1","d":"2","b":"1"}})"},
              {"1", forge::u8_file({{"b", 1}, {"a", 2}})},
              {"2", forge::u8_file({{"d", 2}, {"c", 1}})}});
    CHECK(names_of(contents.tensors) == Names{"b", "a", "d", "c"});
    CHECK(contents.files == Names{"1", "2"});
    CHECK(contents.notes.empty());
    CHECK(contents.sources.size() == 2);
}

TEST_CASE("different spellings of a shard's name mean one file") {
    const Contents contents = read({{"index", R"({"weight_map":{"a":"./s/1","b":"s//1","c":"s/./1"}})"},
                                    {"s/1", forge::u8_file({{"a", 1}, {"b", 1}, {"c", 1}})}});
    CHECK(contents.files == Names{"s/1"});
    CHECK(contents.tensors.size() == 3);
    CHECK(contents.notes.empty());
}

TEST_CASE("a missing shard is named") {
    check_error(error_of([] {
                    static_cast<void>(read({{"index", R"({"weight_map":{"a":"1"}})"}}));
                }),
                {Errc::shard_missing}, {}, {.path = "folder/1"});
}

TEST_CASE("a tensor that its shard lacks is reported with the shard") {
    check_error(error_of([] {
                    static_cast<void>(read({{"index", R"({"weight_map":{"a":"1","b":"2"}})"},
                                            {"1", forge::u8_file({{"a", 1}, {"b", 1}})},
                                            {"2", forge::u8_file({{"c", 1}})}}));
                }),
                {Errc::shard_lacks_tensor}, {}, {.tensor = "b", .path = "folder/2"});
}

TEST_CASE("tensors that the index omits are noted, not listed") {
    const Contents contents =
        read({{"index", R"({"weight_map":{"a":"1"}})"}, {"1", forge::u8_file({{"x", 1}, {"a", 1}, {"y", 1}})}});
    CHECK(names_of(contents.tensors) == Names{"a"});
    CHECK(only_of(contents.notes) ==
          "1 holds 2 tensors that the index does not name; the first is 'x'; `safemap repair` writes an index with all "
          "of them");
    REQUIRE(contents.skipped.size() == 2);
    CHECK(contents.skipped[1].name == "y");
    CHECK(contents.skipped[1].why == "the index does not name it; 1 holds it");
    REQUIRE(contents.unindexed.size() == 2);
    CHECK(contents.unindexed[0].shard == "folder/1");
}

TEST_CASE("the tensors of a shard that the index does not name are as those that it omits") {
    const std::string first = "m-1-of-3.safetensors";
    const std::string second = "m-2-of-3.safetensors";
    const std::string third = "m-3-of-3.safetensors";
    Files files = {{"index", R"({"weight_map":{"a":")" + first + R"(","b":")" + second + R"("}})"},
                   {first, forge::u8_file({{"a", 1}})},
                   {second, forge::u8_file({{"b", 1}})},
                   {third, forge::u8_file({{"c", 1}, {"a", 1}, {"d", 1}})},
                   {"n-3-of-3.safetensors", forge::u8_file({{"e", 1}})}};
    Contents contents = read(files);
    CHECK(names_of(contents.tensors) == Names{"a", "b"});
    CHECK(contents.files == Names{first, second});
    REQUIRE(contents.skipped.size() == 2);
    CHECK(contents.skipped[0].name == "c");
    CHECK(contents.skipped[1].why == "the index does not name it; " + third + " holds it");
    REQUIRE(contents.unindexed.size() == 2);
    CHECK(contents.unindexed[1].name == "d");
    CHECK(contents.unindexed[1].shard == "folder/" + third);
    REQUIRE(contents.notes.size() == 2);
    CHECK(contents.notes[1] == third +
                                   " holds 2 tensors that the index does not name; the first is 'c'; "
                                   "`safemap repair` writes an index with all of them");

    files[third] = "cut";
    contents = read(files);
    CHECK(names_of(contents.tensors) == Names{"a", "b"});
    CHECK(contents.unindexed.empty());
    CHECK(only_of(contents.notes).starts_with("the index does not name " + third + ", though it names other shards"));

    // A shard of which a repeated name leaves no tensor is named all the same.
    files["index"] = R"({"weight_map":{"a":")" + first + R"(","b":")" + third + R"(","b":")" + second + R"("}})";
    CHECK(read(files).notes.size() == 1);
}

TEST_CASE("a tensor that another shard of the index has is not left out") {
    const Contents contents = read({{"index", R"({"weight_map":{"a":"1","b":"2"}})"},
                                    {"1", forge::u8_file({{"a", 1}, {"b", 1}})},
                                    {"2", forge::u8_file({{"b", 1}})}});
    CHECK(names_of(contents.tensors) == Names{"a", "b"});
    CHECK(contents.skipped.empty());
    CHECK(contents.unindexed.empty());
    CHECK(only_of(contents.notes) == "1 holds 1 tensor that the index places in another shard, from which it is read");
}

TEST_CASE("a wrong total_size is noted") {
    const Contents contents =
        read({{"index", R"({"metadata":{"total_size":5},"weight_map":{"a":"1"}})"}, {"1", forge::u8_file({{"a", 3}})}});
    CHECK(only_of(contents.notes) == "the index says total_size 5, but its tensors have 3 bytes");
}

TEST_CASE("the last entry of a tensor in the index counts, with a note") {
    const Files files = {{"index", R"({"weight_map":{"a":"1","b":"2","a":"2"}})"},
                         {"1", forge::u8_file({{"a", 1}})},
                         {"2", forge::u8_file({{"a", 3}, {"b", 1}})}};
    const Contents contents = read(files);
    CHECK(names_of(contents.tensors) == Names{"a", "b"});
    CHECK(contents.tensors.at(0).nbytes() == 3);
    CHECK(contents.files == Names{"2"});
    CHECK(only_of(contents.notes) == "the weight_map names 'a' more than once; the last shard named counts");

    const forge::Folder folder(files);
    ThrowFirst faults;
    check_error(
        error_of([&] {
            static_cast<void>(open::read_shards(folder, folder.open("index"), {.policy = Policy::strict}, faults));
        }),
        {Errc::duplicate_name}, {}, {.tensor = "a", .path = "folder/index"});
}

TEST_CASE("the last of two weight_maps counts, with a note; the strict policy refuses both") {
    const Files files = {{"index", R"({"weight_map":{"a":"1","c":"1"},"weight_map":{"a":"2","b":"2"}})"},
                         {"1", forge::u8_file({{"a", 1}})},
                         {"2", forge::u8_file({{"a", 3}, {"b", 1}})}};
    const Contents contents = read(files);
    CHECK(names_of(contents.tensors) == Names{"a", "b"});
    CHECK(contents.files == Names{"2"});
    CHECK(only_of(contents.notes) == "the index has the key 'weight_map' more than once; the last one counts");

    const forge::Folder folder(files);
    ThrowFirst faults;
    CHECK_FAULT(open::read_shards(folder, folder.open("index"), {.policy = Policy::strict}, faults),
                Errc::duplicate_name);
}

TEST_CASE("metadata is the strings of the index, and the pairs that all shards share") {
    const auto shard = [](std::string_view name, std::string_view metadata) {
        return forge::safetensors(R"({"__metadata__":)" + std::string(metadata) + R"(,")" + std::string(name) +
                                      R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                  "d");
    };
    const Contents contents =
        read({{"index", R"({"metadata":{"k":"index","n":1},"weight_map":{"a":"1","b":"2","c":"3"}})"},
              {"1", shard("a", R"({"format":"pt","k":"shard","x":"1"})")},
              {"2", shard("b", R"({"format":"pt","k":"shard","x":"2"})")},
              {"3", shard("c", R"({"format":"pt","k":"shard"})")}});
    CHECK(contents.metadata == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}, {"k", "index"}});
}

TEST_CASE("a collecting reader reports the faults of all shards in order, and keeps the valid tensors") {
    for (const unsigned threads : {1U, 4U}) {
        CollectFaults faults;
        const Contents contents =
            read({{"index", R"({"weight_map":{"a":"1","b":"2","c":"3","d":"4","e":"../5","f":"1"}})"},
                  {"1", forge::u8_file({{"a", 1}})},
                  {"2", forge::safetensors(forge::u8_header({{"b", 4}}), "ddd")},
                  {"4", "short"}},
                 faults, threads);
        std::vector<Errc> codes;
        for (const auto& fault : faults.faults()) codes.push_back(fault.code());
        CHECK(codes == std::vector<Errc>{Errc::shard_outside_folder, Errc::shard_lacks_tensor, Errc::file_truncated,
                                         Errc::shard_missing, Errc::unknown_format});
        CHECK(names_of(contents.tensors) == Names{"a"});
    }
}

TEST_CASE("an invalid index is a fault of the index file") {
    check_error(error_of([] {
                    static_cast<void>(read({{"index", "{"}}));
                }),
                {Errc::index_not_json}, {}, {.path = "folder/index"});
}

TEST_CASE("an index of many shards is read with many threads") {
    Files files;
    std::string map;
    for (int i = 0; i < 200; ++i) {
        const std::string name = std::to_string(1000 + i);
        files[name] = forge::u8_file({{"w" + name, 3}});
        map += (map.empty() ? "" : ",") + ("\"w" + name + "\":\"" + name + '"');
    }
    files["index"] = "{\"weight_map\":{" + map + "}}";
    ThrowFirst faults;
    const Contents contents = read(files, faults, 8);
    REQUIRE(contents.tensors.size() == 200);
    for (int i = 0; i < 200; ++i)
        CHECK(contents.tensors[static_cast<std::size_t>(i)].name() == "w" + std::to_string(1000 + i));
}

}  // namespace read_shards_test
