// Tests which names are folded, and that the braces cover no name that does not exist.
#include <safemap/advanced/fold.hpp>

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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
    CHECK(folded({"a.99999999999999999999", "a.-1", "a.2x", "a+3"}) ==
          "a.99999999999999999999 x1\na.-1 x1\na.2x x1\na+3 x1\n");
}

TEST_CASE("numbers with zeros in front are folded with numbers of the same width") {
    CHECK(folded({"w000", "w001", "w002", "w110"}) == "w{000..002,110} x4\n");
    CHECK(folded({"a.08", "a.09", "a.10", "a.8", "a.9", "a.100"}) == "a.{08..10} x3\na.{8..9,100} x3\n");
    CHECK(folded({"h.01.w.02", "h.01.w.03", "h.02.w.02", "h.02.w.03"}) == "h.{01..02}.w.{02..03} x4\n");
    CHECK(folded({"e01/w", "e02/w", "e001/w", "f01/w"}) == "e{01..02}/w x2\ne001/w x1\nf01/w x1\n");
    CHECK(folded({"w007"}) == "w007 x1\n");
}

TEST_CASE("digits after letters are not folded without zeros in front") {
    CHECK(folded({"fc1.w", "fc2.w", "conv10", "conv11"}) == "fc1.w x1\nfc2.w x1\nconv10 x1\nconv11 x1\n");
}

/// Reads names that fold() returns back: the product of the numbers in braces.
std::vector<std::string> expanded(const NameParts& parts) {
    std::vector<std::string> names = {""};
    for (const std::string& part : parts) {
        const std::size_t open = part.find('{');
        std::vector<std::string> texts;
        if (open == std::string::npos) texts.push_back(part);
        else {
            std::istringstream ranges(part.substr(open + 1, part.size() - open - 2));
            for (std::string range; std::getline(ranges, range, ',');) {
                const std::string low = range.substr(0, range.find('.'));
                const std::string high = range.substr(range.rfind('.') + 1);
                for (std::uint64_t number = std::stoull(low); number <= std::stoull(high); ++number) {
                    std::string digits = std::to_string(number);
                    if (low.front() == '0' || low.size() > digits.size())
                        digits.insert(0, low.size() - std::min(low.size(), digits.size()), '0');
                    texts.push_back(part.substr(0, open) + digits);
                }
            }
        }
        std::vector<std::string> longer;
        for (const std::string& name : names)
            for (const std::string& text : texts) longer.push_back(name + text);
        names = std::move(longer);
    }
    return names;
}

TEST_CASE("random names: the braces give exactly the names that were folded") {
    std::mt19937 random(soak::seed(7));
    for (int round = 0; round < soak::rounds_of_one_thread(2000); ++round) {
        std::set<std::string> names;
        for (int i = 0; i < 60; ++i) {
            std::string name;
            for (int part = 0; part < 3; ++part) {
                if (part > 0) name += random() % 4 == 0 ? '/' : '.';
                if (random() % 2 == 0) name += "ab"[random() % 2];
                const std::string digits = std::to_string(random() % 12);
                if (random() % 3 != 0) name += random() % 2 == 0 ? digits : "0" + digits;
            }
            names.insert(name);
        }
        std::vector<std::string> order(names.begin(), names.end());
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::string> back;
        for (const Folded& item :
             fold(order.size(), [&](std::size_t i) { return Foldable{.name = order[i], .kind = "F32"}; })) {
            const auto some = expanded(item.parts);
            CHECK(some.size() == item.count);
            back.insert(back.end(), some.begin(), some.end());
        }
        std::sort(back.begin(), back.end());
        CHECK(back == std::vector<std::string>(names.begin(), names.end()));
    }
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
    CHECK(prefix_of("h.01.w") == "h");
    CHECK(prefix_of("h01.w") == "h01");
    CHECK(prefix_of("").empty());
}

TEST_CASE("a name of a hundred thousand dots is split in linear time") {
    const std::string dots(100'000, '.');
    CHECK(name_parts(dots).size() == 64);
    CHECK(folded({dots.c_str()}) == dots + " x1\n");
}

}  // namespace fold_test
