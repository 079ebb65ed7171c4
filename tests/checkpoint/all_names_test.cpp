// Tests the list of all names of a checkpoint, in order.
#include <safemap/checkpoint.hpp>

#include <safemap/advanced/names.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"

#include <string>

namespace all_names_test {

using namespace safemap;

namespace {

Checkpoint open(std::string_view content) { return Checkpoint::open(forge::source(content)); }

/// Returns index and name of each entry: "0:wte 0:head".
std::string listed(const std::vector<NamedTensor>& names) {
    std::string text;
    for (const NamedTensor& named : names)
        text += (text.empty() ? "" : " ") + std::to_string(named.tensor) + ':' + std::string(named.name);
    return text;
}

}  // namespace

TEST_CASE("the other names of a tied tensor follow its own") {
    const auto model = open(forge::safetensors(
        R"({"__metadata__":{"head2":"wte","head":"wte","c":"b","format":"pt"},)"
        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"wte":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
        R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
        "xyz"));
    CHECK(listed(all_names(model)) == "0:a 1:wte 1:head 1:head2 2:b 2:c");
    CHECK(listed(all_names(model, Selection::glob("*e*"))) == "1:wte 1:head 1:head2");
    CHECK(listed(all_names(model, Selection::glob("*").exclude("wte").exclude("b"))) == "0:a 1:head 1:head2 2:c");
    CHECK(all_names(model, Selection::glob("d")).empty());
}

TEST_CASE("a checkpoint without tensors has no names") {
    const auto model = open(forge::safetensors("{}"));
    CHECK(all_names(model).empty());
}

}  // namespace all_names_test
