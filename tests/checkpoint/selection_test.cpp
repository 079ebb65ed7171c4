// Tests which names a selection matches.
#include <safemap/selection.hpp>

#include "doctest_safemap.hpp"

#include <chrono>

namespace selection_test {

using safemap::Selection;

TEST_CASE("an empty selection matches every name") {
    CHECK(Selection().matches(""));
    CHECK(Selection().matches("a.b"));
}

TEST_CASE("a glob matches the whole name, including dots and slashes") {
    struct Row {
        const char* pattern;
        const char* name;
        bool matches;
    };
    constexpr Row rows[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "a/b.c", true},
        {"a", "a", true},
        {"a", "ab", false},
        {"a", "ba", false},
        {"a*", "a", true},
        {"*a", "bba", true},
        {"*a", "bab", false},
        {"a*b*c", "axxbxxc", true},
        {"a*b*c", "axxcxxb", false},
        {"a**b", "ab", true},
        {"?", "a", true},
        {"?", "", false},
        {"a?c", "abc", true},
        {"*.weight", "a.weight", true},
        {"*.weight", "a.weight_g", false},
        {"*ab", "aab", true},
        {"*aab*", "aaab", true},
        {"[a-c]", "b", true},
        {"[a-c]", "d", false},
        {"[!a-c]", "d", true},
        {"[^a-c]", "b", false},
        {"[]]", "]", true},
        {"[!]]", "a", true},
        {"[!]]", "]", false},
        {"[-a]", "-", true},
        {"[a-]", "-", true},
        {"[a", "[a", true},
        {"[a", "a", false},
        {"[", "[", true},
        {"[]", "[]", true},
        {"l.[0-9].w", "l.7.w", true},
        {"l.[0-9].w", "l.17.w", false},
        {"*[0-9]", "a1b2", true},
        {"\\*", "\\x", true},
        {"A", "a", false},
        {"*.*", "ab", false},
        {"*?", "", false},
    };
    for (const Row& row : rows) {
        CAPTURE(row.pattern);
        CAPTURE(row.name);
        CHECK(Selection::glob(row.pattern).matches(row.name) == row.matches);
    }
}

TEST_CASE("a hostile glob does not take exponential time") {
    std::string pattern;
    for (int i = 0; i < 50; ++i) pattern += "*a";
    const std::string name(20'000, 'a');
    const auto begin = std::chrono::steady_clock::now();
    CHECK_FALSE(Selection::glob(pattern + "b").matches(name));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("a prefix ends at a dot, a slash or the end of the name") {
    const auto layer = Selection::prefix("layers.1");
    CHECK(layer.matches("layers.1"));
    CHECK(layer.matches("layers.1.w"));
    CHECK(layer.matches("layers.1/w"));
    CHECK_FALSE(layer.matches("layers.10.w"));
    CHECK_FALSE(layer.matches("layers"));
    CHECK(Selection::prefix("layers.").matches("layers.10.w"));
    CHECK_FALSE(Selection::prefix("layers.").matches("layers"));
    CHECK(Selection::prefix("").matches("anything"));
}

TEST_CASE("names match exactly, and an empty list of names selects nothing") {
    const auto names = Selection::names({"a", "b*"});
    CHECK(names.matches("a"));
    CHECK(names.matches("b*"));
    CHECK_FALSE(names.matches("bc"));
    CHECK_FALSE(Selection::names({}).matches(""));
    CHECK_FALSE(Selection::names({}).matches("a"));
    CHECK(Selection::names({}).include("a*").matches("ab"));
    CHECK(Selection::names({"c"}).include("a*").matches("ab"));
    CHECK(Selection::names({"c"}).include("a*").matches("c"));
    CHECK_FALSE(Selection::names({"c"}).exclude("c").matches("c"));
}

TEST_CASE("excludes win over includes") {
    Selection selection;
    selection.include("a*").include("b*").exclude("*.bias");
    CHECK(selection.matches("a.weight"));
    CHECK(selection.matches("b"));
    CHECK_FALSE(selection.matches("c"));
    CHECK_FALSE(selection.matches("a.bias"));
    CHECK_FALSE(Selection().exclude("x").matches("x"));
    CHECK(Selection().exclude("x").matches("y"));
}

}  // namespace selection_test
