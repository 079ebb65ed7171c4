// Tests a table of patterns and names against what Python's re.match says, and that no pattern takes long.
#include "distributed/parallel/pattern.hpp"

#include "doctest_safemap.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace pattern_python_test {

using namespace safemap;
using distributed::Pattern;
using distributed::PatternList;

namespace {

constexpr std::string_view names[] = {"",
                                      "a",
                                      "b",
                                      "ab",
                                      "ba",
                                      "aab",
                                      "abc",
                                      "a.b",
                                      "a-b",
                                      "a0",
                                      "layers.0.mlp.weight",
                                      "layers.12.attn.q_proj.weight",
                                      "embed",
                                      "A_1",
                                      "x\ny",
                                      "]a",
                                      "a b",
                                      "layersX0"};
constexpr std::uint32_t refused = 1U << 31;

/// A pattern, and which of the names Python 3.11 says that it matches: bit i for name i.
struct Row {
    std::string_view pattern;
    std::uint32_t names;
};

// clang-format off
constexpr Row rows[] = {
    {R"p(layers\.\d+\.mlp\.weight)p", 0x400},
    {R"p(layers.\d+.*weight$)p", 0xc00},
    {R"p(^embed$)p", 0x1000},
    {R"p(.*)p", 0x3ffff},
    {R"p()p", 0x3ffff},
    {R"p(^$)p", 0x1},
    {R"p(a|b)p", 0x103fe},
    {R"p((a|b)c)p", 0x0},
    {R"p((?:a|b)+$)p", 0x3e},
    {R"p(a*b)p", 0x7c},
    {R"p(a*?b$)p", 0x2c},
    {R"p(a+?)p", 0x103ea},
    {R"p(ab??$)p", 0xa},
    {R"p([ab]+$)p", 0x3e},
    {R"p([^ab])p", 0x2fc00},
    {R"p([]a]+)p", 0x183ea},
    {R"p([^]a])p", 0x27c14},
    {R"p([a-]+$)p", 0x2},
    {R"p([-a]+$)p", 0x2},
    {R"p([a-c]+$)p", 0x7e},
    {R"p([\d_A]+$)p", 0x2000},
    {R"p([\w.]+$)p", 0x23efe},
    {R"p([.])p", 0x0},
    {R"p(a[^.]b)p", 0x10120},
    {R"p(\w+$)p", 0x2327e},
    {R"p(\W)p", 0x8000},
    {R"p(\D+$)p", 0x1d1fe},
    {R"p(\S+$)p", 0x2bffe},
    {R"p(a\sb)p", 0x10000},
    {R"p(\Aa\Z)p", 0x2},
    {R"p(a\Z)p", 0x2},
    {R"p(x.y)p", 0x0},
    {R"p(x\ny)p", 0x4000},
    {R"p(x$)p", 0x0},
    {R"p(.*y$)p", 0x0},
    {R"p((a*)*b)p", 0x7c},
    {R"p((a|)*b)p", 0x7c},
    {R"p((a|ab)(c|bcd)?$)p", 0x4a},
    {R"p(()a)p", 0x103ea},
    {R"p((|a)+b)p", 0x7c},
    {R"p((?:)a)p", 0x103ea},
    {R"p((^a)+b)p", 0x48},
    {R"p((a$)?)p", 0x3ffff},
    {R"p(a^b)p", 0x0},
    {R"p($)p", 0x1},
    {R"p($a)p", 0x0},
    {R"p(a\.b)p", 0x80},
    {R"p(a\-b)p", 0x100},
    {R"p(\/)p", 0x0},
    {R"p(layers\.(0|12)\.(mlp|attn)\..*)p", 0xc00},
    {R"p([a-z]+\d?$)p", 0x127e},
    {R"p(\d*a)p", 0x103ea},
    {R"p(.+0)p", 0x20600},
    {R"p(a.)p", 0x103e8},
    {R"p([+--])p", 0x0},
    {R"p(\t|\n|x)p", 0x4000},
    {R"p(((((a))))b)p", 0x48},
    {R"p(*a)p", refused},
    {R"p(a**)p", refused},
    {R"p(()p", refused},
    {R"p())p", refused},
    {R"p(a))p", refused},
    {R"p((a)p", refused},
    {R"p([)p", refused},
    {R"p([])p", refused},
    {R"p([a)p", refused},
    {R"p([b-a])p", refused},
    {R"p([\d-a])p", refused},
    {R"p([a-\d])p", refused},
    {R"p(\)p", refused},
    {R"p(^*)p", refused},
    {R"p($+)p", refused},
    {R"p(\A?)p", refused},
    {R"p(a???)p", refused},
    {R"p(a*?*)p", refused},
    {R"p((?)p", refused},
    {R"p(\q)p", refused},
    {R"p(|*)p", refused},
    {R"p((*a))p", refused},
    {R"p(a|+b)p", refused},
    {R"p(()|b)-)p", refused},
    {R"p(0|*?)p", refused},
    {R"p($0\.[^a]a)p", 0x0},
    {R"p(\w(?:))p", 0x37ffe},
    {R"p($a-)p", 0x0},
    {R"p(\wb[ab])p", 0x0},
    {R"p((?:a|+\w)p", refused},
    {R"p([ab]0[^a]?|^)p", 0x3ffff},
    {R"p(|(?:b+.[ab])^)p", 0x3ffff},
    {R"p(-+\db-)p", 0x0},
    {R"p(0*$)p", 0x1},
    {R"p(-\w\.a)p", 0x0},
    {R"p(layers\.^)p", 0x0},
    {R"p(+(?:layers$-())p", refused},
    {R"p(\w\.?)p", 0x37ffe},
    {R"p(-\w[^a]a\w-)p", 0x0},
    {R"p(b*?[^a]\wb\d0)p", 0x0},
    {R"p(\w*?[ab]$)p", 0x3e},
    {R"p(layers.\.[ab][^a]b|)p", 0x3ffff},
    {R"p($layers)p", 0x0},
    {R"p(\dlayers.)p", 0x0},
    {R"p(aa*0)p", 0x200},
    {R"p(\.layers$\d)p", 0x0},
    {R"p(alayers)p", 0x0},
    {R"p(layers(?:)^)p", 0x0},
    {R"p(a$)p", 0x2},
    {R"p(\.bb--*?)p", 0x0},
    {R"p(00)p", 0x0},
    {R"p(layers-0)p", 0x0},
    {R"p(\w.layers[ab]b$0a)p", 0x0},
    {R"p(\d\.-a)p", 0x0},
    {R"p(((?:^)p", refused},
    {R"p(.\.ab)p", 0x0},
    {R"p(0^)p", 0x0},
    {R"p(a$)*b\d)p", refused},
    {R"p(a[^a])0.)p", refused},
    {R"p(|^b\.\.)p", 0x3ffff},
    {R"p(b\w)p", 0x10},
    {R"p([ab]b*?)p", 0x103fe},
    {R"p(.|*)p", refused},
    {R"p(ba)p", 0x10},
    {R"p(\.[^a])p", 0x0},
    {R"p((?:.)b)p", 0x48},
    {R"p(\w[^a]\wa[ab])p", 0x0},
    {R"p(-layers)p", 0x0},
    {R"p(b.)p", 0x10},
    {R"p(-b*?)p", 0x0},
    {R"p(b[ab])p", 0x10},
    {R"p(b^-)p", 0x0},
    {R"p($\w)p", 0x0},
    {R"p(\d\d$.)p", 0x0},
    {R"p([^a]b.+\.)p", 0x0},
    {R"p((?:|0.+)*$)p", 0x1},
    {R"p((?:-)p", refused},
    {R"p(\.a?)p", 0x0},
    {R"p(b-a)p", 0x0},
    {R"p($aa0b\d|)p", 0x3ffff},
    {R"p([^a]?layers+\w)p", 0x20000},
    {R"p(ba\w$*?)p", refused},
    {R"p(a0\d+ab)p", 0x0},
    {R"p(ab\.)p", 0x0},
    {R"p(|[^a]||[^a]a)p", 0x3ffff},
    {R"p(0\w)p", 0x0},
    {R"p(0b(?:[ab]))p", 0x0},
    {R"p(a*?$layers.)p", 0x0},
    {R"p([ab]*ba0^layers\.)p", 0x0},
    {R"p(\.b$ab$\d+)p", 0x0},
    {R"p(\.aa^)p", 0x0},
    {R"p(|layers\.b+(?:a()p", refused},
    {R"p(.b.)p", 0x40},
    {R"p((?:|b)layerslayers$)p", 0x0},
    {R"p(*?^.)p", refused},
    {R"p(a*)p", 0x3ffff},
    {R"p(\w-^[ab]a)p", 0x0},
    {R"p(layers.\w.)p", 0xc00},
    {R"p(\w+a\d)p", 0x0},
    {R"p()).b*?\d^)p", refused},
    {R"p([ab]?-*)p", 0x3ffff},
    {R"p(blayers*?)p", 0x0},
    {R"p(\.-0|0.)p", 0x0},
};
// clang-format on

}  // namespace

TEST_CASE("patterns match the names that Python's re.match says") {
    for (const Row& row : rows) {
        INFO(std::string(row.pattern));
        const auto pattern = Pattern::parse(row.pattern);
        CHECK(pattern.has_value() == (row.names != refused));
        if (!pattern || row.names == refused) continue;
        std::uint64_t steps = 1 << 20;
        std::uint32_t matched = 0;
        for (std::size_t i = 0; i < std::size(names); ++i)
            if (pattern->matches(names[i], steps)) matched |= 1U << i;
        CHECK(matched == row.names);
    }
}

TEST_CASE("what Python knows and this does not is refused, not misread") {
    for (const std::string_view text :
         {R"(a{2})",  R"(a{2,}?)",  R"(a{,3})",   R"(\bname)", R"(\B)",       R"((a)\1)",   R"((?=a))",
          R"((?!a))", R"((?<=a)b)", R"((?<!a)b)", R"((?i)a)",  R"((?P<n>a))", R"((?#no)a)", R"(a*+)",
          R"(a++)",   R"(a?+)",     R"(\x61)",    R"(\u0061)", R"([\b])",     "\xc3\xa4",   "[\xc3\xa4]"}) {
        CAPTURE(text);
        CHECK(!Pattern::parse(text).has_value());
        PatternList list;
        CHECK(!list.add(std::string(text)));
        CHECK(list.size() == 0);
    }
    CHECK(Pattern::parse(std::string(1024, 'a')).has_value());
    CHECK(!Pattern::parse(std::string(1025, 'a')).has_value());
}

TEST_CASE("no pattern takes more steps than states times characters") {
    std::string nested = "a";
    for (int i = 0; i < 200; ++i) nested = "(" + nested + ")*";
    std::string optional;
    for (int i = 0; i < 300; ++i) optional += "a?";
    for (int i = 0; i < 300; ++i) optional += 'a';
    std::string alternatives = "(a";
    for (int i = 0; i < 200; ++i) alternatives += "|a|aa";
    alternatives += ")*b";
    for (const std::string& text :
         {nested + "b", optional, alternatives, std::string("(a+)+(a+)+(a*)*b"), std::string("((a|a)*|(a|a)*)*$x"),
          std::string(500, '(') + std::string(500, ')') + "b"}) {
        const auto pattern = Pattern::parse(text);
        REQUIRE(pattern.has_value());
        const std::string name(200, 'a');
        std::uint64_t steps = 1 << 30;
        CHECK(!pattern->matches(name, steps));
        CHECK((1 << 30) - steps <= 4 * (text.size() + 1) * (name.size() + 1));
    }
    CHECK(!Pattern::parse(std::string(1000, '(')).has_value());
    CHECK(!Pattern::parse(std::string(1000, '[')).has_value());
    CHECK(!Pattern::parse(std::string(999, '\\') + 'q').has_value());
}

TEST_CASE("a match that has no steps left is an error") {
    const auto pattern = Pattern::parse("(a*)*b");
    REQUIRE(pattern.has_value());
    std::uint64_t steps = 20;
    CHECK_FAULT(pattern->matches(std::string(100, 'a'), steps), Errc::unsupported_layout);
    CHECK(steps == 0);
    steps = 1 << 20;
    CHECK(pattern->matches("aab", steps));
    CHECK(steps < 1 << 20);
}

TEST_CASE("every single byte is a pattern that is refused, or matches as a character does") {
    for (int c = 0; c < 256; ++c) {
        const std::string text(1, static_cast<char>(c));
        const auto pattern = Pattern::parse(text);
        const bool special = std::string_view("()[*+?\\{").find(text) != std::string_view::npos;
        CAPTURE(c);
        CHECK(pattern.has_value() == (c < 128 && !special));
        std::uint64_t steps = 1000;
        if (pattern && text != "^" && text != "$" && text != "|") CHECK(pattern->matches(text + "x", steps));
    }
}

TEST_CASE("a list finds the first pattern that matches, and how many do") {
    PatternList list;
    const std::string texts[] = {"^a\\.weight$", "b\\.weight$", "a\\.weight$", ".*weight", "a\\-b_c/d$", "a.weight$"};
    for (const std::string& text : texts) CHECK(list.add(text));
    CHECK(list.add(texts[0]));  // a second time counts once
    CHECK(list.size() == 6);
    CHECK(list.text(3) == ".*weight");
    std::uint64_t steps = 1 << 20;
    const auto found = [&](const std::string& name) { return list.find(name, steps); };
    CHECK(found("a.weight").count == 4);
    CHECK(found("a.weight").first == 0);
    CHECK(found("b.weight").count == 2);
    CHECK(found("b.weight").first == 1);
    CHECK(found("xweight").count == 1);
    CHECK(found("xweight").first == 3);
    CHECK(found("aXweight").count == 2);
    CHECK(found("aXweight").first == 3);
    CHECK(found("a-b_c/d").count == 1);
    CHECK(found("a-b_c/d").first == 4);
    CHECK(found("a-b_c/de").count == 0);
    CHECK(found("").count == 0);
}

TEST_CASE("patterns that match one name only cost nothing, however many there are") {
    PatternList list;
    for (int i = 0; i < 20000; ++i) CHECK(list.add("layers\\." + std::to_string(i) + "\\.weight$"));
    std::uint64_t steps = 0;
    for (int i = 0; i < 20000; i += 999) {
        const auto found = list.find("layers." + std::to_string(i) + ".weight", steps);
        CHECK(found.count == 1);
        CHECK(found.first == static_cast<std::size_t>(i));
    }
    CHECK(list.find("layers.20000.weight", steps).count == 0);
}

}  // namespace pattern_python_test
