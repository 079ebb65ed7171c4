// Tests the suggestions for a misspelled name.
#include "checkpoint/near_names.hpp"

#include "doctest_safemap.hpp"

namespace near_names_test {

using safemap::checkpoint::NearNames;

namespace {

std::vector<std::string> near(std::string_view wanted, const std::vector<std::string>& names) {
    NearNames nearest(wanted);
    for (const auto& name : names) nearest.consider(name);
    return nearest.names();
}

}  // namespace

TEST_CASE("the nearest name comes first") {
    CHECK(near("wieght", {"bias", "weights", "weight"}) == std::vector<std::string>{"weight"});
    CHECK(near("layer.1.w", {"layer.22.w", "layer.11.w", "layer.1.ww", "lay.1.w"}) ==
          std::vector<std::string>{"layer.11.w", "layer.1.ww", "layer.22.w"});
    CHECK(near("a", {}) == std::vector<std::string>{});
}

TEST_CASE("a name that is too different is not suggested") {
    CHECK(near("model.embed.weight", {"x", "optimizer", std::string(10'000, 'm')}).empty());
    CHECK(near("", {"abc"}).empty());
    CHECK(near("", {"a"}) == std::vector<std::string>{"a"});
}

}  // namespace near_names_test
