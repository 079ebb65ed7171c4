// Tests reading and writing JSON.
#include "base/json.hpp"

#include "doctest_safemap.hpp"

namespace json_test {

using namespace safemap;

namespace {

json::Value parse(std::string_view text) { return json::parse(text, Errc::index_not_json); }

std::string written(std::string_view text, json::Charset charset) {
    std::string out;
    json::append_string(out, text, charset);
    return out;
}

std::string nested(unsigned depth) { return std::string(depth, '[') + std::string(depth, ']'); }

}  // namespace

TEST_CASE("a document becomes a tree in the order of the text") {
    const json::Value root = parse(R"( {"b": [1, -2, 2.5, true, null, "x\u00e9"], "a": {"": {}}, "b2": []} )");
    REQUIRE(root.object() != nullptr);
    CHECK(root.object()->at(0).key == "b");
    CHECK(root.object()->at(2).key == "b2");
    const auto& items = *root.find("b")->array();
    REQUIRE(items.size() == 6);
    CHECK(items[0].unsigned_integer() == 1U);
    CHECK(items[0].integer() == 1);
    CHECK(items[1].integer() == -2);
    CHECK_FALSE(items[1].unsigned_integer().has_value());
    CHECK(items[2].number() == 2.5);
    CHECK_FALSE(items[2].integer().has_value());
    CHECK(items[3].boolean() == true);
    CHECK(items[4].is_null());
    CHECK(*items[5].string() == "x\u00e9");
    CHECK(root.find("a")->find("")->object()->empty());
    CHECK(root.find("b2")->array()->empty());
    CHECK(root.find("c") == nullptr);
    CHECK(items[0].find("c") == nullptr);
}

TEST_CASE("integers are exact up to 64 bits") {
    CHECK(parse("18446744073709551615").unsigned_integer() == UINT64_MAX);
    CHECK_FALSE(parse("18446744073709551615").integer().has_value());
    CHECK(parse("9007199254740993").unsigned_integer() == 9007199254740993U);
    CHECK(parse("-9223372036854775808").integer() == INT64_MIN);
    CHECK_FALSE(parse("4.0").unsigned_integer().has_value());
    CHECK(parse("4e0").number() == 4.0);
}

TEST_CASE("the last of several equal keys counts") {
    const json::Value root = parse(R"({"a": 1, "b": 2, "\u0061": 3})");
    CHECK(root.find("a")->unsigned_integer() == 3U);
    CHECK(root.object()->size() == 3);
}

TEST_CASE("invalid JSON is refused at every position") {
    for (const char* text : {"",
                             " ",
                             "{",
                             "[1,]",
                             "{\"a\":1,}",
                             "[1 2]",
                             "nul",
                             "truex",
                             "01",
                             "+1",
                             ".5",
                             "1.",
                             "1e",
                             "1e999",
                             "-",
                             "'a'",
                             "\"\\x\"",
                             "\"\\ud800\"",
                             "\"\\udc00 \"",
                             "\"\t\"",
                             "\"",
                             "{1:2}",
                             "[1}",
                             "{} {}",
                             "[]x",
                             "// no",
                             "\xef\xbb\xbf{}",
                             "\"\xff\"",
                             "\"\xed\xa0\x80\"",
                             "{\"x\":[1 2 tru]}",
                             "NaN"}) {
        CAPTURE(text);
        CHECK_FAULT(parse(text), Errc::index_not_json);
    }
}

TEST_CASE("127 levels are read and 128 are not") {
    CHECK_OK(parse(nested(127)));
    CHECK_FAULT(parse(nested(128)), Errc::index_not_json);
    CHECK_FAULT(parse(nested(100'000)), Errc::index_not_json);
}

TEST_CASE("the error has the code that the caller passed") {
    CHECK_FAULT(json::parse("{", Errc::header_not_json), Errc::header_not_json);
}

TEST_CASE("strings are escaped as serde_json does") {
    CHECK(written("\"\\\b\f\n\r\t\x01\x1f/\x7f", json::Charset::utf8) == R"("\"\\\b\f\n\r\t\u0001\u001f/)"
                                                                         "\x7f\"");
    CHECK(written(std::string_view("\0", 1), json::Charset::utf8) == R"("\u0000")");
    CHECK(written("\u00e9\u2028\U0001f600", json::Charset::utf8) == "\"\u00e9\u2028\U0001f600\"");
    CHECK(written("", json::Charset::utf8) == "\"\"");
}

TEST_CASE("strings are escaped as Python's json.dump does") {
    CHECK(written("\"\\\b\f\n\r\t\x01/\x7f", json::Charset::ascii) == R"("\"\\\b\f\n\r\t\u0001/\u007f")");
    CHECK(written("a\u00e9\u2028\uffff", json::Charset::ascii) == R"("a\u00e9\u2028\uffff")");
    CHECK(written("\U0001f600\U0010ffff", json::Charset::ascii) == R"("\ud83d\ude00\udbff\udfff")");
}

TEST_CASE("bytes that are not UTF-8 become replacement characters") {
    CHECK(written("a\xff", json::Charset::ascii) == R"("a\ufffd")");
    CHECK(written("\xf0\x9f\x98", json::Charset::ascii) == R"("\ufffd\ufffd\ufffd")");
    CHECK(written("\xc0\x80", json::Charset::ascii) == R"("\ufffd\ufffd")");
}

TEST_CASE("written JSON is read back the same") {
    std::string all;
    for (char c = 1; c < 127; ++c) all += c;
    all += "\x7f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff";
    for (const auto charset : {json::Charset::utf8, json::Charset::shown, json::Charset::ascii})
        CHECK(*parse(written(all, charset)).string() == all);
}

TEST_CASE("the members of a large object are streamed, not stored") {
    using Members = std::vector<std::pair<std::string, std::optional<std::string>>>;
    Members members;
    const auto on_member = [&](std::string_view key, std::optional<std::string_view> text) {
        members.emplace_back(key, text);
    };
    const auto parsed = [&](std::string_view text) {
        members.clear();
        return json::parse(text, Errc::index_not_json, "big", on_member);
    };
    const json::Value root =
        parsed(R"({"a":1,"big":{"x":"1","y":2,"x":"\u00e9","z":{"w":"3"}},"b":{"big":{"n":"4"}}})");
    CHECK(members == Members{{"x", "1"}, {"y", std::nullopt}, {"x", "\u00e9"}, {"z", std::nullopt}});
    CHECK(root.find("a")->integer() == 1);
    CHECK(root.find("big")->object()->empty());
    CHECK(*root.find("b")->find("big")->find("n")->string() == "4");

    CHECK(parsed(R"({"big":{"x":"1"},"big":{"y":"2"}})").find("big")->object()->empty());
    CHECK(members == Members{{"y", "2"}});
    CHECK(parsed(R"({"big":{"x":"1"},"big":7})").find("big")->integer() == 7);
    CHECK(members.empty());
    CHECK(parsed(R"([{"big":{"x":"1"}}])").array()->size() == 1);
    CHECK(members.empty());

    CHECK_FAULT(parsed(R"({"big":{"x":"1"},)"), Errc::index_not_json);
    CHECK_FAULT(parsed(R"({"big":{"x":)" + nested(126) + "}}"), Errc::index_not_json);
    CHECK_OK(parsed(R"({"big":{"x":)" + nested(125) + "}}"));
}

}  // namespace json_test
