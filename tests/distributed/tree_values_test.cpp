// Tests the comparison of the values of two trees, and copies.
#include "distributed/ranks/tree_values.hpp"

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "torch/parts.hpp"

#include <safemap/error.hpp>

#include <limits>
#include <string>
#include <vector>

namespace tree_values_test {

using namespace safemap;
using distributed::TreeComparison;
using distributed::TreeCopy;

namespace {

StateTree tree_of(const pt::Value& value) { return torch::read_whole(forge::source(pt::Writer::file(value))).tree; }

bool same(const pt::Value& a, const pt::Value& b) {
    const StateTree x = tree_of(a);
    const StateTree y = tree_of(b);
    return TreeComparison(x, y).same(x.root(), y.root());
}

/// Returns values that differ from each other.
std::vector<pt::Value> different_values() {
    using namespace pt;
    std::vector<Value> all = {none(),
                              boolean(true),
                              boolean(false),
                              integer(1),
                              integer(2),
                              real(1),
                              real(-0.0),
                              real(0.0),
                              real(std::numeric_limits<double>::quiet_NaN()),
                              text("1"),
                              text(""),
                              list(),
                              tuple(),
                              list({integer(1)}),
                              tuple({integer(1)}),
                              list({integer(1), integer(2)}),
                              dict(),
                              ordered(),
                              dict({{"a", integer(1)}}),
                              dict({{"a", integer(2)}}),
                              dict({{"b", integer(1)}}),
                              dict({{"a", integer(1)}, {"b", integer(1)}}),
                              dict({{"b", integer(1)}, {"a", integer(1)}}),
                              size({1, 2}),
                              tensor(Dtype::f32, {2}, "aaaabbbb"),
                              tensor(Dtype::f32, {2}, "aaaabbbc"),
                              tensor(Dtype::i32, {2}, "aaaabbbb"),
                              tensor(Dtype::f32, {1, 2}, "aaaabbbb"),
                              object("m", "A"),
                              object("m", "B"),
                              object("m", "A", {{"x", integer(1)}}),
                              object("m", "A", {{"y", integer(1)}}),
                              call("m", "A", {integer(1)}),
                              call("torch", "device", {text("cpu")}),
                              call("torch", "device", {text("cuda:1")})};
    Value deep = integer(3);
    for (int i = 0; i < 300; ++i) deep = list({std::move(deep)});
    all.push_back(deep);
    return all;
}

}  // namespace

TEST_CASE("values are equal to themselves and to no other") {
    const auto values = different_values();
    for (std::size_t i = 0; i < values.size(); ++i)
        for (std::size_t j = 0; j < values.size(); ++j) {
            CAPTURE(i);
            CAPTURE(j);
            CHECK(same(values[i], values[j]) == (i == j));
        }
}

TEST_CASE("large tensors are compared by dtype and shape") {
    const std::string bytes(128 << 10, 'a');
    CHECK(
        same(pt::tensor(Dtype::f32, {32768}, bytes), pt::tensor(Dtype::f32, {32768}, std::string(bytes.size(), 'b'))));
    CHECK_FALSE(same(pt::tensor(Dtype::f32, {32768}, bytes), pt::tensor(Dtype::f32, {32768, 1}, bytes)));
}

TEST_CASE("cycles, and a value in many places") {
    StateTree a;
    StateTree b;
    for (StateTree* const tree : {&a, &b}) {
        const auto list = tree->add(StateTree::Sequence{StateTree::Sequence::Kind::list});
        const auto number = tree->add(std::int64_t{1});
        std::get<StateTree::Sequence>((*tree)[list]).items = {list, number};
        tree->set_root(list);
    }
    CHECK(TreeComparison(a, b).same(a.root(), b.root()));
    b[1] = std::int64_t{2};
    CHECK_FALSE(TreeComparison(a, b).same(a.root(), b.root()));
    // A list of a list of a list, each twice: 2^40 places, and 40 nodes.
    StateTree many;
    auto node = many.add(std::int64_t{1});
    for (int i = 0; i < 40; ++i) node = many.add(StateTree::Sequence{StateTree::Sequence::Kind::list, {node, node}});
    many.set_root(node);
    const StateTree other = many;
    CHECK(TreeComparison(many, other).same(many.root(), other.root()));
    // A difference in one of them is found, however often the caller asks, until it has asked too often.
    StateTree changed = many;
    changed[0] = std::int64_t{2};
    TreeComparison comparison(many, changed);
    CHECK_FALSE(comparison.same(many.root(), changed.root()));
    CHECK_FAULT(
        [&] {
            for (int i = 0; i < 1'000'000; ++i) static_cast<void>(comparison.same(many.root(), changed.root()));
        }(),
        Errc::pickle_too_large);
}

TEST_CASE("copies share what the original shares, and keep cycles") {
    StateTree from;
    const auto leaf = from.add(std::string("x"));
    const auto list = from.add(StateTree::Sequence{StateTree::Sequence::Kind::list, {leaf, leaf}});
    std::get<StateTree::Sequence>(from[list]).items.push_back(list);
    StateTree to;
    static_cast<void>(to.add(StateTree::None()));
    TreeCopy copy(from, to);
    const auto copied = copy.copy(list);
    const auto& items = std::get<StateTree::Sequence>(to[copied]).items;
    REQUIRE(items.size() == 3);
    CHECK(items[0] == items[1]);
    CHECK(items[2] == copied);
    CHECK(std::get<std::string>(to[items[0]]) == "x");
    CHECK(copy.copy(leaf) == items[0]);
    CHECK(to.size() == 3);
}

TEST_CASE("the first bytes of tensors") {
    const auto tensor = [](const std::string& bytes) {
        return LazyTensor("t", stored_run(Dtype::u8, {bytes.size()}, forge::source(bytes), 0));
    };
    CHECK(distributed::have_equal_bytes(tensor("abcd"), tensor("abce"), 3));
    CHECK_FALSE(distributed::have_equal_bytes(tensor("abcd"), tensor("abce"), 4));
    CHECK(distributed::have_equal_bytes(tensor(""), tensor(""), 100));
}

}  // namespace tree_values_test
