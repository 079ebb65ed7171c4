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

TEST_CASE("a name below a prefix is near, however long the prefix is") {
    const std::string long_name = std::string(10'000, 'm') + "/norm.weight";
    CHECK(near("norm.weight", {"norm.height", long_name, "model.layernorm.weight"}) ==
          std::vector<std::string>{"norm.height", long_name});
    CHECK(near("module.norm.weight", {"norm.weight", "form.weight"}) == std::vector<std::string>{"norm.weight"});
    CHECK(near("norm.weight", {"norm.weight/", "/enormous.norm_weight"}) == std::vector<std::string>{"norm.weight/"});
}

}  // namespace near_names_test
