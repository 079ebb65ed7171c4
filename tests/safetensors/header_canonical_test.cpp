// Tests that headers in the reference's form are read without a JSON parser, with the same result as with it. From top
// to bottom: reading both ways, random and mutated headers, headers by hand, truncations, strings.
#include "safetensors/header_canonical.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <random>

namespace header_canonical_test {

using namespace safemap;
using safetensors::CanonicalHeader;
using safetensors::Header;
using safetensors::Rules;

namespace {

constexpr std::uint64_t limit = 100'000'000;

/// True if this header needs no JSON parser.
bool canonical(const std::string& header) {
    const std::string padded = header + std::string(64, '\0');
    std::vector<CanonicalHeader::Row> rows;
    std::vector<safetensors::MetadataPlace> metadata;
    return CanonicalHeader(std::string_view(padded).substr(0, header.size()), rows, metadata).read();
}

/// Returns a message without the offset that it names.
std::string placeless(const Error& error) {
    const std::string message = error.what();
    return std::string(name(error.code())) + ' ' + message.substr(0, message.find("; near byte")) + '\n';
}

std::string told(const Header& header) {
    std::string text = header.has_metadata ? "metadata\n" : "";
    for (const auto& [key, value] : header.metadata) text += key + '=' + value + '\n';
    for (const auto& [name, dtype, shape, data] : header.tensors)
        text += std::string(name) + ' ' + std::string(safemap::name(dtype)) + ' ' + to_string(shape) + ' ' +
                std::to_string(data.offset - header.data_offset) + ' ' + std::to_string(data.size) + '\n';
    for (const Error& error : header.tolerated) text += "tolerated " + placeless(error);
    return text;
}

/// Returns everything that reading this header reports, under these rules.
std::string told(const std::string& header, std::size_t data_bytes, Rules rules) {
    const auto source = forge::source(forge::safetensors(header, std::string(data_bytes, 'd')));
    CollectFaults collected;
    std::string text = told(safetensors::read_header(*source, rules, limit, collected));
    for (const Error& fault : collected.faults()) text += "fault " + placeless(fault);
    ThrowFirst throwing;
    const auto thrown = error_of([&] { static_cast<void>(safetensors::read_header(*source, rules, limit, throwing)); });
    return text + (thrown ? "thrown " + placeless(*thrown) : "");
}

/// Reads a header unchanged, and with a space after its `{`, which requires the JSON parser and has the same meaning.
void check_both_ways(const std::string& header, std::size_t data_bytes) {
    CAPTURE(header);
    REQUIRE(header.starts_with('{'));
    const std::string spaced = "{ " + header.substr(1);
    REQUIRE_FALSE(canonical(spaced));
    for (const auto rules : {Rules::compatible, Rules::strict, Rules::lenient, Rules::repair})
        CHECK(told(header, data_bytes, rules) == told(spaced, data_bytes, rules));
}

using Random = std::mt19937;

std::string random_name(Random& random, std::size_t number) {
    static const std::array<std::string, 8> parts = {"weight",       "",         "é", "模型", "😀", "a.b",
                                                     "__metadata__", "layers.10"};
    std::string name;
    for (auto count = random() % 4; count > 0; --count) name += parts[random() % parts.size()] + '.';
    return name + std::to_string(number);
}

struct Made {
    std::string header;
    std::size_t data_bytes = 0;
};

/// Returns a header of up to `most` tensors as our writer makes it, which is the reference's form.
Made random_header(Random& random, unsigned most) {
    std::vector<safetensors::TensorSpec> specs;
    std::deque<std::string> names;
    std::deque<Shape> shapes;
    Made made;
    const std::size_t count = random() % (most + 1);
    for (std::size_t i = 0; i < count; ++i) {
        Shape shape;
        for (auto rank = random() % 4; rank > 0; --rank) shape.push_back(random() % 4);
        if (random() % 8 == 0) shape.push_back(8 * (random() % 20));
        auto dtype = static_cast<Dtype>(random() % safetensors_dtypes);
        if (!byte_size(dtype, *element_count(shape))) dtype = Dtype::bf16;
        made.data_bytes += *byte_size(dtype, *element_count(shape));
        specs.push_back({names.emplace_back(random_name(random, i)), dtype, &shapes.emplace_back(std::move(shape))});
    }
    std::vector<std::pair<std::string, std::string>> metadata;
    for (auto entries = random() % 3; entries > 0; --entries)
        metadata.emplace_back(random_name(random, entries), random_name(random, 0));
    std::vector<safetensors::TensorSpec> sorted;
    for (const std::uint32_t i : safetensors::file_order(specs)) sorted.push_back(specs[i]);
    made.header = safetensors::write_header(sorted, metadata, random() % 2 == 0 || !metadata.empty(), 8).substr(8);
    return made;
}

/// Returns the text between two offsets where a member, a number or a word may begin or end.
std::string random_part(Random& random, const std::string& header) {
    const std::size_t begin = std::min(header.find_first_of("\",{[", random() % header.size()), header.size() - 1);
    const std::size_t end = std::min(header.find_first_of("\",}]", begin + 1 + random() % 80), header.size() - 1);
    return header.substr(begin, end - begin + random() % 2);
}

void mutate(Random& random, std::string& header) {
    static const std::vector<std::string> words = {"\\u0041",
                                                   "\\\"",
                                                   "\xc3",
                                                   "\xed\xa0\x80",
                                                   "0",
                                                   "-1",
                                                   "1e3",
                                                   "null",
                                                   "[]",
                                                   "{}",
                                                   ",",
                                                   "]}",
                                                   "F64",
                                                   "Q8",
                                                   " ",
                                                   "18446744073709551616",
                                                   "9999999999999999999",
                                                   "\"__metadata__\":null,"};
    const std::size_t at = 1 + random() % (header.size() - 1);
    switch (random() % 6) {
        case 0: header[at] = static_cast<char>(random()); break;
        case 1: header[at] = R"({}[]",:0123456789.-eE\u F)"[random() % 25]; break;
        case 2: header.erase(at, 1 + random() % 3); break;
        case 3: header.insert(at, random_part(random, header)); break;
        case 4: header.insert(at, words[random() % words.size()]); break;
        default:
            header.replace(at, std::min<std::size_t>(header.size() - at, random() % 4), words[random() % words.size()]);
    }
}

/// Returns a header of one tensor 'a' of one byte, between `before` and `behind`.
std::string around(const std::string& before, const std::string& behind) {
    return before + R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})" + behind;
}

/// Returns the header of a tensor 'a' with this value.
std::string one(const std::string& value) { return R"({"a":)" + value + '}'; }

}  // namespace

TEST_CASE("headers of the reference's files need no JSON parser") {
    for (const char* const file :
         {"safetensors/every_dtype", "safetensors/no_metadata", "write/shards/model-00001-of-00004"}) {
        CAPTURE(file);
        const std::string bytes = TempDir::read(std::string(SAFEMAP_TEST_DATA "/") + file + ".safetensors");
        std::uint64_t size = 0;
        std::memcpy(&size, bytes.data(), sizeof size);
        const std::string header = bytes.substr(8, size);
        CHECK(canonical(header));
        check_both_ways(header, bytes.size() - 8 - size);
    }
}

TEST_CASE("headers that our writer makes need no JSON parser, and both ways of reading agree") {
    const unsigned seed = soak::seed(15);
    CAPTURE(seed);
    Random random(seed);
    for (int round = 0; round < soak::rounds(800); ++round) {
        const Made made = random_header(random, 6);
        const bool only_spaces = made.header.find('"') == std::string::npos;
        CHECK(canonical(made.header) != only_spaces);
        check_both_ways(made.header, made.data_bytes);
    }
}

TEST_CASE("both ways of reading a mutated header agree") {
    const unsigned seed = soak::seed(16);
    CAPTURE(seed);
    Random random(seed);
    int plain = 0;
    int refused = 0;
    const int rounds = soak::rounds(4'000);
    for (int round = 0; round < rounds; ++round) {
        auto [header, data_bytes] = random_header(random, 3);
        for (auto edits = 1 + random() % 2; edits > 0 && header.size() > 2; --edits) mutate(random, header);
        check_both_ways(header, data_bytes);
        ++(canonical(header) ? plain : refused);
    }
    CHECK(plain > rounds / 50);  // otherwise the mutations would test only one of the two ways
    CHECK(refused > rounds / 4);
}

TEST_CASE("both ways agree on names and keys that are duplicate, out of order, or misplaced") {
    const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    const std::string b = R"("b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]})";
    for (const std::string& header :
         {"{" + b + "," + a + "}", "{" + a + "," + a + "}", "{" + a + "," + b + "," + a + "}",
          R"({"__metadata__":{"k":"1","k":"2"},)" + a + "," + b + "}",
          R"({"__metadata__":{"z":"1","k":"2"},)" + a + "}", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,1]})"),
          one(R"({"dtype":"F32","shape":[2],"data_offsets":[2,0]})"),
          one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})"),
          one(R"({"dtype":"F32","shape":[9999999999999999999,9],"data_offsets":[0,2]})"),
          one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})")}) {
        CHECK(canonical(header));
        check_both_ways(header, 2);
    }
}

TEST_CASE("any other form goes to the JSON parser, and both ways agree") {
    for (const std::string& header : {
             std::string("{}"),
             std::string("{"),
             std::string("{}  "),
             // around the tensors
             around("{", "}\n"),
             around("{", "} {"),
             around("{", "}x"),
             around("{", ""),
             around("{", ",}"),
             around("{", "}}"),
             around("{", std::string("}\0", 2)),
             around("{,", "}"),
             around("{ ", "}"),
             around("{", " }"),
             around("{", R"(,"__metadata__":{"k":"v"}})"),
             around(R"({"__metadata__":null,)", "}"),
             around(R"({"__metadata__":{},)", R"(,"__metadata__":{}})"),
             around(R"({"__metadata__":{"k":1},)", "}"),
             around(R"({"__metadata__":{"k":"v",},)", "}"),
             around(R"({"__metadata__":{"k":"\n"},)", "}"),
             around(R"({"__metadata__":{"\u006b":"v"},)", "}"),
             around("{\"__metadata__\":{\"k\":\"\x1f\"},", "}"),
             around("{\"__metadata__\":{\"k\":\"\xff\"},", "}"),
             around(R"({"__metadata__":{"k":"v"})", "}"),

             std::string(R"({"__metadata__":{"k":"v"})"),
             std::string(R"({"__metadata__":{"k":"v"},})"),
             // names
             std::string(R"({"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
             std::string(R"({"a\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
             std::string(R"({"a\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})"),
             std::string("{\"a\n\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
             std::string("{\"a\xc3\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
             std::string("{\"\xed\xa0\x80\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
             std::string("{\"\xc0\x80\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
             std::string("{\"12345678\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"),
             std::string(R"({"a)"),
             // values
             one("null"),
             one("[\"U8\",[1],[0,1]]"),
             one(R"({"dtype":"Q8","shape":[1],"data_offsets":[0,1]})"),
             one(R"({"dtype":"u8","shape":[1],"data_offsets":[0,1]})"),
             one(R"({"dtype":"U\u0038","shape":[1],"data_offsets":[0,1]})"),
             one(R"({"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]})"),
             one(R"({"shape":[1],"dtype":"U8","data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","data_offsets":[0,1],"shape":[1]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0})"),
             one(R"({"dtype":"U8","shape":[1]})"),
             one(R"({"dtype":"U8","shape":[1], "data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","shape":[01],"data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[00,1]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,01]})"),
             one(R"({"dtype":"U8","shape":[1,],"data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","shape":[1e0],"data_offsets":[0,1]})"),
             one(R"({"dtype":"U8","shape":[18446744073709551615,0],"data_offsets":[0,0]})"),
             one(R"({"dtype":"U8","shape":[18446744073709551616,0],"data_offsets":[0,0]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551617]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})"),
             one(R"({"dtype":"U8","shape":[1],"data_offsets":[,1]})"),
         }) {
        CAPTURE(header);
        CHECK_FALSE(canonical(header));
        check_both_ways(header, 1);
    }
}

TEST_CASE("tensors and metadata of a header whose end needs the JSON parser are not added twice") {
    const std::string header = around(R"({"__metadata__":{"k":"v"},)", "}\n");
    CHECK(told(header, 1, Rules::lenient) ==
          "metadata\nk=v\na U8 [1] 0 1\ntolerated header_not_canonical the header is padded with bytes other than "
          "spaces\n");
}

TEST_CASE("both ways agree on every truncation of a header") {
    Random random(17);  // NOLINT: the same header every time
    const Made made = random_header(random, 6);
    for (std::size_t size = 1; size < made.header.size(); ++size) check_both_ways(made.header.substr(0, size), 20);
}

TEST_CASE("the end of a string is found at any alignment and for any content") {
    for (std::size_t length = 0; length < 40; ++length)
        for (int byte = 0; byte < 256; ++byte) {
            std::string name(length, 'n');
            if (length > 0) name[static_cast<std::size_t>(byte) % length] = static_cast<char>(byte);
            name += std::string(length % 3, '~');
            const std::string header =
                around('{' + ('"' + name + R"(x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"), "}");
            const bool plain = length == 0 || (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\');
            CHECK(canonical(header) == plain);
        }
}

}  // namespace header_canonical_test
