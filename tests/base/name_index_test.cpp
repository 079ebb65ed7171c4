// Tests the map from names to numbers.
#include "base/name_index.hpp"

#include "doctest_safemap.hpp"

#include <string>
#include <vector>

namespace name_index_test {

using safemap::NameIndex;

TEST_CASE("every name has the number it was added with") {
    std::vector<std::string> names;
    for (int i = 0; i < 5000; ++i)
        names.push_back(std::string(static_cast<std::size_t>(i % 20), 'x') + std::to_string(i));
    const auto name_of = [&](std::uint32_t i) { return std::string_view(names[i]); };
    NameIndex index;
    for (std::uint32_t i = 0; i < names.size(); ++i) CHECK(index.add(names[i], i, name_of) == i);
    for (std::uint32_t i = 0; i < names.size(); ++i) CHECK(index.find(std::string(names[i]), name_of) == i);
    CHECK_FALSE(index.find("absent", name_of).has_value());
    CHECK_FALSE(index.find("", name_of).has_value());
}

TEST_CASE("adding a name a second time keeps its number") {
    const std::vector<std::string> names = {"", "a", "", "a"};
    const auto name_of = [&](std::uint32_t i) { return std::string_view(names[i]); };
    NameIndex index;
    CHECK(index.add("", 0, name_of) == 0);
    CHECK(index.add("a", 1, name_of) == 1);
    CHECK(index.add("", 2, name_of) == 0);
    CHECK(index.add("a", 3, name_of) == 1);
}

TEST_CASE("an empty index finds nothing") {
    CHECK_FALSE(NameIndex().find("a", [](std::uint32_t) { return std::string_view(); }).has_value());
}

TEST_CASE("hashes differ for names that differ in one bit or in length") {
    CHECK(safemap::name_hash("a") != safemap::name_hash("b"));
    CHECK(safemap::name_hash("12345678") != safemap::name_hash("12345679"));
    CHECK(safemap::name_hash(std::string_view("a\0", 2)) != safemap::name_hash("a"));
    CHECK(safemap::name_hash("a") == safemap::name_hash(std::string("a")));
}

}  // namespace name_index_test
