// Tests lists of digests as text, and the space reserved for them in headers.
#include "safetensors/digests.hpp"

#include "doctest_safemap.hpp"
#include "safetensors/header.hpp"
#include "safetensors/index.hpp"

#include <map>
#include <vector>

namespace digests_test {

using namespace safemap;
using namespace safemap::safetensors;

namespace {

Digest filled(int byte) {
    Digest digest;
    digest.fill(static_cast<std::byte>(byte));
    return digest;
}

std::map<std::string, std::string> read(std::string_view text) {
    std::map<std::string, std::string> found;
    read_digests(text, [&](std::string_view name, const Digest& digest) { found.emplace(name, hex(digest)); });
    return found;
}

}  // namespace

TEST_CASE("a written list is read back, for any names") {
    CHECK(write_digests({}) == "{}");
    CHECK(read("{}").empty());
    const std::vector<std::pair<std::string_view, Digest>> list = {
        {"w", filled(1)}, {"\"\\\n", filled(0xab)}, {"\xc3\xa9", filled(0)}};
    const std::string text = write_digests(list);
    CHECK(text == R"({"w":"01010101010101010101010101010101","\"\\\n":"abababababababababababababababab",)"
                  "\"\xc3\xa9\":\"00000000000000000000000000000000\"}");
    const auto found = read(text);
    REQUIRE(found.size() == 3);
    for (const auto& [name, digest] : list) CHECK(found.at(std::string(name)) == hex(digest));
}

TEST_CASE("JSON from other programs is read too") {
    CHECK(read("{ \"\\u00e9\" : \"00000000000000000000000000000000\" }\n").count("\xc3\xa9") == 1);
}

TEST_CASE("an invalid list of digests is refused") {
    for (const auto* text :
         {"", "{", "[]", "null", "\"x\"", R"({"w":null})", R"({"w":1})", R"({"w":""})", R"({"w":{}})",
          R"({"w":"0000000000000000000000000000000"})", R"({"w":"000000000000000000000000000000000"})",
          R"({"w":"0000000000000000000000000000000g"})", R"({"w":"ABABABABABABABABABABABABABABABAB"})",
          R"({"w":"00000000000000000000000000000000"} x)", R"({"w":"00000000000000000000000000000000",})"}) {
        CAPTURE(text);
        CHECK_FAULT(read(text), Errc::header_bad_metadata);
    }
}

TEST_CASE("digests are patched into their places in a header and in an index, whatever is around them") {
    const std::string key(checkpoint_digest_key);
    const Shape shape{1};
    const std::vector<TensorSpec> tensors = {{key, Dtype::u8, &shape}, {"w", Dtype::u8, &shape}};
    const std::string zeros = hex(filled(0));
    const std::string ones = hex(filled(0x11));
    const auto metadata = [&](const std::string& value) {
        return std::vector<std::pair<std::string, std::string>>{
            {"a", '"' + key + "\":\"" + zeros}, {'"' + key + "\":", zeros}, {key, value}, {"z", zeros}};
    };
    std::string head = write_header(tensors, metadata(zeros), true, 8);
    put_metadata(head, key, ones);
    CHECK(head == write_header(tensors, metadata(ones), true, 8));

    const std::vector<std::pair<std::string_view, Digest>> empty = {{"\"w\"", filled(0)}, {"\xc3\xa9", filled(0)}};
    std::vector<std::pair<std::string_view, Digest>> full = empty;
    for (auto& entry : full) entry.second = filled(0x22);
    const auto list = [&](const auto& of) {
        return std::vector<std::pair<std::string, std::string>>{{std::string(digests_key), write_digests(of)}};
    };
    std::string listed = write_header(tensors, list(empty), true, 8);
    put_digests(listed, full);
    CHECK(listed == write_header(tensors, list(full), true, 8));

    const std::vector<std::pair<std::string_view, std::string_view>> weight_map = {{key, "1"}, {"w", "2"}};
    std::string index = write_index(2, metadata(zeros), weight_map);
    put_metadata(index, key, ones);
    CHECK(index == write_index(2, metadata(ones), weight_map));
}

}  // namespace digests_test
