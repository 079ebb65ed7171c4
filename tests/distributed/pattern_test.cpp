// Tests patterns against the verdicts of Python's re.match, which the tables hold, and hostile ones against a bound.
#include "distributed/parallel/pattern.hpp"

#include "doctest_safemap.hpp"

#include <ctime>
#include <string>

namespace pattern_test {

using namespace safemap;
using distributed::Pattern;
using distributed::PatternList;

namespace {

struct Verdict {
    const char* pattern;
    const char* name;
    bool matches;
};

const Verdict verdicts[] = {{"embed\\.weight", "embed.weight", true},
                            {"embed\\.weight", "embedXweight", false},
                            {"embed.weight", "embedXweight", true},
                            {"norm\\.weight", "layers.0.norm.weight", false},
                            {".*norm\\.weight", "layers.0.norm.weight", true},
                            {"^a$", "ab", false},
                            {"^a$", "a", true},
                            {"a", "ab", true},
                            {"a\\Z", "ab", false},
                            {"transformer.layers.\\d+.bias", "transformer.layers.12.bias", true},
                            {"transformer.layers.\\d+.bias", "transformer.layers..bias", false},
                            {"\\d+", "x1", false},
                            {"[ab]+c", "abac", true},
                            {"[^ab]c", "ac", false},
                            {"[^ab]c", "xc", true},
                            {"[a-c\\d]+$", "ab12c", true},
                            {"[a-c\\d]+$", "ab12d", false},
                            {"[]x]y", "]y", true},
                            {"[x-]y", "-y", true},
                            {"(q|k|v)_proj", "k_proj", true},
                            {"(q|k|v)_proj", "o_proj", false},
                            {"(?:q|kv)*x", "qkvqx", true},
                            {"(?:q|kv)*x", "qkx", false},
                            {"a??b", "b", true},
                            {"a+?b", "aab", true},
                            {"a+?b", "b", false},
                            {"", "anything", true},
                            {"|a", "b", true},
                            {"a|", "b", true},
                            {"()*a", "a", true},
                            {"\\w+\\.\\w+$", "abc.d_1", true},
                            {"\\W", "a", false},
                            {"\\W", ".", true},
                            {"\\s", "\x1c", true},
                            {"\\S", "\x1c", false},
                            {"a\\n", "a\n", true},
                            {"a$", "a\n", true},
                            {"a\\Z", "a\n", false},
                            {".", "\n", false},
                            {"\\.\\-\\/", ".-/", true},
                            {"a$b", "ab", false},
                            {"a^b", "ab", false},
                            {"\\Aab", "ab", true},
                            {"}]", "}]", true}};

const char* const unknown[] = {"(",        "a)",  "a**", "*a",   "a{2}",  "a*+", "(?=a)", "(?i)a",
                               "(?P<n>a)", "\\1", "\\b", "\\q",  "[a",    "[]",  "[b-a]", "[\\d-z]",
                               "[a-\\d]",  "^*",  "a\\", "\\A*", "\\x41", "(?a"};

}  // namespace

TEST_CASE("patterns match as re.match does") {
    for (const Verdict& verdict : verdicts) {
        CAPTURE(verdict.pattern);
        CAPTURE(verdict.name);
        const auto pattern = Pattern::parse(verdict.pattern);
        REQUIRE(pattern.has_value());
        std::uint64_t steps = 10'000;
        CHECK(pattern->matches(verdict.name, steps) == verdict.matches);
    }
}

TEST_CASE("patterns beyond the known ones are refused") {
    for (const char* text : unknown) {
        CAPTURE(text);
        CHECK_FALSE(Pattern::parse(text).has_value());
    }
    CHECK_FALSE(Pattern::parse("\xc3\xa9").has_value());
    CHECK_FALSE(Pattern::parse(std::string(1025, 'a')).has_value());
    CHECK(Pattern::parse(std::string(1024, 'a')).has_value());
}

TEST_CASE("hostile patterns take time in proportion to states and characters") {
    const std::string name(20'000, 'a');
    for (const char* text : {"(a*)*b", "(a|a)*b", "(a|aa)+$b", "((((a*)*)*)*)*b", "(.*)(.*)(.*)(.*)(.*)b"}) {
        CAPTURE(text);
        const auto pattern = Pattern::parse(text);
        REQUIRE(pattern.has_value());
        std::uint64_t steps = 64 * 20'000;
        CHECK_FALSE(pattern->matches(name, steps));
        std::uint64_t few = 1'000;
        CHECK_FAULT(pattern->matches(name, few), Errc::unsupported_layout);
    }
    std::string nested(1'000, '(');
    CHECK_FALSE(Pattern::parse(nested).has_value());
    nested = std::string(500, '(') + std::string(500, ')');
    CHECK(Pattern::parse(nested).has_value());
}

TEST_CASE("a list finds how many patterns match, and the first") {
    PatternList list;
    for (const char* text : {"^layers\\.0\\.up$", "layers.*", "^norm$", "layers.*", "^layers\\.0\\.up"})
        CHECK(list.add(text));
    CHECK_FALSE(list.add("(?=x)"));
    CHECK(list.size() == 4);
    std::uint64_t steps = 10'000;
    CHECK(list.find("layers.0.up", steps).count == 3);
    CHECK(list.find("layers.0.up", steps).first == 0);
    CHECK(list.find("layers.1.up", steps).count == 1);
    CHECK(list.find("layers.1.up", steps).first == 1);
    CHECK(list.find("norm", steps).count == 1);
    CHECK(list.find("norm.x", steps).count == 0);
    CHECK(list.text(2) == "^norm$");
    const std::uint64_t before = steps;
    CHECK(PatternList().find("norm", steps).count == 0);
    CHECK(steps == before);
}

TEST_CASE("a pattern that fails at the first character takes as long as a short one, however long it is") {
    const auto time_of = [](std::size_t length) {
        PatternList list;
        for (int i = 0; i < 3000; ++i) {
            const std::string number = std::to_string(i);
            REQUIRE(list.add(number + '.' + std::string(length - number.size(), 'x')));
        }
        std::uint64_t steps = 1 << 30;
        const std::clock_t begin = std::clock();
        for (int i = 0; i < 300; ++i) CHECK(list.find("name", steps).count == 0);
        return std::clock() - begin;
    };
    CHECK(time_of(1000) < 10 * time_of(5) + CLOCKS_PER_SEC / 2);
}

TEST_CASE("memory for matching is shared by patterns and names of any length") {
    std::uint64_t steps = 1 << 20;
    Pattern::Scratch scratch;
    for (int round = 0; round < 3; ++round)
        for (const char* text : {"a+b", "(a|ab)*c", "a", "[ab]+$"}) {
            const auto pattern = Pattern::parse(text);
            REQUIRE(pattern.has_value());
            for (const char* name : {"", "a", "aab", "abac", "b", "aaaaaaaaaaaaaaaaaaaab"})
                CHECK(pattern->matches(name, steps, scratch) == pattern->matches(name, steps));
        }
}

}  // namespace pattern_test
