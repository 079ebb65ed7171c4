// Tests the comparison of weights that several ranks hold whole.
#include "check/training_files.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <string>
#include <utility>

namespace replicas_test {

using namespace safemap;

namespace {

LazyTensor tensor(std::string bytes, Dtype dtype = Dtype::u8) {
    const Shape shape = {bytes.size() / element_size(dtype)};
    return {"w", stored_run(dtype, shape, forge::source(std::move(bytes), "rank"), 0), Decoding()};
}

state::Replica replica(LazyTensor first, LazyTensor other) {
    return {"w", std::move(first), std::move(other), "rank 0", "rank 1"};
}

std::vector<std::string> notes(state::Replica one) {
    const Monitor nobody;
    Watch watch(nobody, "comparing", 0);
    state::Contents contents;
    contents.replicas.push_back(std::move(one));
    return check::compare_replicas(contents, watch);
}

}  // namespace

TEST_CASE("equal replicas give no note, and a note names both files of others") {
    // Longer than a block, with a difference in each part of it.
    const std::string bytes((3 << 20) + 5, 'a');
    CHECK(notes(replica(tensor(bytes), tensor(bytes))).empty());
    CHECK(notes(replica(tensor(""), tensor(""))).empty());
    for (const std::size_t at : {std::size_t{0}, std::size_t{1} << 20, bytes.size() - 1}) {
        std::string other = bytes;
        other[at] = 'b';
        const auto found = notes(replica(tensor(bytes), tensor(other)));
        REQUIRE(found.size() == 1);
        CHECK(found[0].find("rank 0") != std::string::npos);
        CHECK(found[0].find("rank 1") != std::string::npos);
    }
}

TEST_CASE("replicas of other shapes or dtypes differ") {
    CHECK(notes(replica(tensor("aaaa"), tensor("aaa"))).size() == 1);
    CHECK(notes(replica(tensor("aaaa"), tensor("aaaa", Dtype::f32))).size() == 1);
}

TEST_CASE("replicas that are made one at a time are compared, and only so many are named") {
    const Monitor nobody;
    Watch watch(nobody, "comparing", 0);
    state::Contents contents;
    contents.replicas.more = [](const std::function<void(const state::Replica&)>& visit) {
        for (int i = 0; i < 3000; ++i) visit(replica(tensor("aaaa"), tensor(i % 2 == 0 ? "aaaa" : "aaab")));
    };
    const auto found = check::compare_replicas(contents, watch);
    REQUIRE(found.size() == 1001);
    CHECK(found.back().find("500 more") != std::string::npos);
}

}  // namespace replicas_test
