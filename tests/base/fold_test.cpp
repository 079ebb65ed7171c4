// Tests which names are folded, and that the braces cover no name that does not exist.
#include <safemap/advanced/fold.hpp>

#include "doctest_safemap.hpp"

#include <initializer_list>

namespace fold_test {

using namespace safemap;

namespace {

std::string folded(std::initializer_list<const char*> names) {
    std::vector<Foldable> all;
    for (const char* name : names) all.push_back({name, "F32 [2]", 8});
    std::string text;
    for (const Folded& item : fold(all)) text += item.name() + " x" + std::to_string(item.count) + '\n';
    return text;
}

}  // namespace

TEST_CASE("layers become one line") {
    CHECK(folded({"h.0.w", "h.0.b", "h.1.w", "h.1.b", "h.2.w", "h.2.b", "ln.w"}) ==
          "h.{0..2}.w x3\nh.{0..2}.b x3\nln.w x1\n");
}

TEST_CASE("experts fold within layers, and layers with different experts stay apart") {
    CHECK(folded({"l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w", "l.2.e.0.w"}) ==
          "l.{0..1}.e.{0..1}.w x4\nl.2.e.0.w x1\n");
}

TEST_CASE("missing numbers are not in the braces") {
    CHECK(folded({"s.3", "s.0", "s.1", "s.9", "s.8"}) == "s.{0..1,3,8..9} x5\n");
    CHECK(number_ranges({4}) == "4");
    CHECK(number_ranges({4, 6}) == "{4,6}");
}

TEST_CASE("a number that would be printed differently is not folded") {
    CHECK(folded({"a.01", "a.02", "a.99999999999999999999", "a.-1", "a.2x"}) ==
          "a.01 x1\na.02 x1\na.99999999999999999999 x1\na.-1 x1\na.2x x1\n");
}

TEST_CASE("a dot and a slash are different separators") {
    CHECK(folded({"a.0", "a/1", "0", "1"}) == "a.0 x1\na/1 x1\n{0..1} x2\n");
    CHECK(name_parts("a/b.c") == NameParts{"a", "/b", ".c"});
    CHECK(name_parts("..a.") == NameParts{".", ".a", "."});
    CHECK(name_parts("").empty());
}

TEST_CASE("tensors of another dtype or shape are another line") {
    const auto lines = fold({{"a.0", "F32 [2]", 8}, {"a.1", "BF16 [2]", 4}, {"a.2", "F32 [2]", 8}});
    REQUIRE(lines.size() == 2);
    CHECK(lines[0].name() == "a.{0,2}");
    CHECK(lines[0].bytes == 16);
    CHECK(lines[1].name() == "a.1");
}

TEST_CASE("a folded line lists every file of its tensors") {
    const auto lines = fold({{"a.0", "F32 [2]", 8, 3},
                             {"a.1", "F32 [2]", 8, 1},
                             {"b", "F32 [2]", 8, 0},
                             {"a.2", "F32 [2]", 8, 3},
                             {"c", "F32 [2]", 8, 2}});
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].files == std::vector<std::uint64_t>{1, 3});
    CHECK(lines[0].times() == "x 3");
    CHECK(lines[1].files.empty());
    CHECK(lines[1].times().empty());
    CHECK(lines[2].files == std::vector<std::uint64_t>{2});
}

TEST_CASE("a prefix ends before the first number, or before the last part") {
    CHECK(prefix_of("model.layers.0.mlp.weight") == "model.layers");
    CHECK(prefix_of("model.norm.weight") == "model.norm");
    CHECK(prefix_of("optimizer/state/0/exp_avg") == "optimizer/state");
    CHECK(prefix_of("lm_head").empty());
    CHECK(prefix_of("0.bias").empty());
    CHECK(prefix_of("h.01.w") == "h.01");
    CHECK(prefix_of("").empty());
}

TEST_CASE("a name of a hundred thousand dots is split in linear time") {
    const std::string dots(100'000, '.');
    CHECK(name_parts(dots).size() == 64);
    CHECK(folded({dots.c_str()}) == dots + " x1\n");
}

}  // namespace fold_test
