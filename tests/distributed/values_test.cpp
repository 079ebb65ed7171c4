// Tests typed access to the tree of a rank: what is there, what is missing, and messages that name the field.
#include "distributed/values.hpp"

#include "doctest_safemap.hpp"
#include "forge.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace safemap;
using distributed::Value;
using Sequence = StateTree::Sequence;

namespace {

StateTree::NodeId dict(StateTree& tree, const std::vector<std::pair<StateTree::Node, StateTree::Node>>& entries) {
    StateTree::Dict made;
    for (const auto& [key, value] : entries) made.items.emplace_back(tree.add(key), tree.add(value));
    return tree.add(std::move(made));
}

StateTree::NodeId sequence(StateTree& tree, Sequence::Kind kind, const std::vector<StateTree::Node>& items) {
    Sequence made{kind};
    for (const StateTree::Node& item : items) made.items.push_back(tree.add(item));
    return tree.add(std::move(made));
}

template <class Run> void check_missing(Run&& run, const std::string& message) {
    const auto error = error_of(run);
    REQUIRE(error.has_value());
    CHECK(error->code() == Errc::field_missing);
    CHECK(error->message() == message);
}

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("keys of a dictionary: None counts as missing, except for has()") {
    StateTree tree;
    tree.set_root(dict(tree, {{std::string("a"), std::int64_t{1}},
                              {std::string("none"), StateTree::None()},
                              {std::int64_t{2}, std::string("number key")},
                              {true, std::string("other key")}}));
    const Value root(tree);
    CHECK(root.is_dict());
    CHECK(!root.is_none());
    CHECK(root.at("a").integer() == 1);
    CHECK(root.at("a").where() == "a");
    CHECK(!root.find("none").has_value());
    CHECK(root.has("none"));
    CHECK(!root.has("b"));
    CHECK(!root.find("2").has_value());  // only keys that are texts
    check_missing([&] { root.at("none"); }, "the field none is missing");
    check_missing([&] { Value(tree, tree.root(), "up/here").at("b"); }, "the field up/here/b is missing");
    const auto entries = root.entries();
    REQUIRE(entries.size() == 3);
    CHECK(entries[0].first == "a");
    CHECK(entries[1].second.is_none());
    CHECK(entries[2].first == "2");
    CHECK(entries[2].second.text() == "number key");
    CHECK(entries[2].second.where() == "2");
}

TEST_CASE("values of another type are nothing, or a fault with the path of the field") {
    StateTree tree;
    const std::vector<StateTree::Node> nodes = {StateTree::None(),
                                                true,
                                                std::int64_t{-1},
                                                0.5,
                                                std::string("x"),
                                                StateTree::Bytes{},
                                                StateTree::BigInt{"99999999999999999999"}};
    for (const StateTree::Node& node : nodes) {
        const Value value(tree, tree.add(node), "w");
        CHECK(!value.find("a").has_value());
        CHECK(!value.has("a"));
        CHECK(!value.attribute("a").has_value());
        CHECK(!value.is_list());
        CHECK(value.tensor() == nullptr);
        CHECK(value.boolean().has_value() == std::holds_alternative<bool>(node));
        CHECK(value.text().has_value() == std::holds_alternative<std::string>(node));
        CHECK(value.integer().has_value() == std::holds_alternative<std::int64_t>(node));
        check_missing([&] { value.at("a"); }, "the field w/a is missing");
        check_missing([&] { value.items(); }, "the field w is not a list");
        check_missing([&] { value.entries(); }, "the field w is not a dictionary");
        check_missing([&] { value.count(); }, "the field w is not a number");
        check_missing([&] { value.shape(); }, "the field w is not a shape");
    }
    check_missing([&] { Value(tree, tree.add(true)).items(); }, "the file is not a list");
}

TEST_CASE("numbers, also those of an enumeration") {
    StateTree tree;
    const auto object = [&](std::vector<StateTree::Node> arguments, std::uint32_t count) {
        StateTree::Opaque made;
        made.type = "deepspeed.runtime.zero.config.ZeroStageEnum";
        for (const StateTree::Node& argument : arguments) made.children.emplace_back("0", tree.add(argument));
        made.arguments = count;
        return Value(tree, tree.add(std::move(made)));
    };
    CHECK(Value(tree, tree.add(largest)).count() == static_cast<std::uint64_t>(largest));
    CHECK(Value(tree, tree.add(std::int64_t{0})).count() == 0);
    CHECK(object({std::int64_t{3}}, 1).integer() == 3);
    CHECK(object({std::int64_t{3}}, 1).count() == 3);
    CHECK(!object({std::int64_t{3}}, 0).integer().has_value());
    CHECK(!object({std::int64_t{3}, std::int64_t{4}}, 1).integer().has_value());
    CHECK(!object({std::int64_t{3}, std::int64_t{4}}, 2).integer().has_value());
    CHECK(!object({std::string("3")}, 1).integer().has_value());
    CHECK(!object({}, 0).integer().has_value());
}

TEST_CASE("lists and shapes") {
    StateTree tree;
    const std::vector<StateTree::Node> sizes = {std::int64_t{2}, std::int64_t{0}, largest};
    for (const auto kind : {Sequence::Kind::list, Sequence::Kind::tuple, Sequence::Kind::size, Sequence::Kind::set,
                            Sequence::Kind::frozenset}) {
        const Value value(tree, sequence(tree, kind, sizes), "w");
        const bool is_list = kind == Sequence::Kind::list || kind == Sequence::Kind::tuple;
        CHECK(value.is_list() == is_list);
        if (is_list) CHECK(value.items().size() == 3);
        if (is_list) CHECK(value.items()[2].where() == "w/2");
        if (is_list || kind == Sequence::Kind::size)
            CHECK(value.shape() == Shape{2, 0, static_cast<std::uint64_t>(largest)});
        else check_missing([&] { value.shape(); }, "the field w is not a shape");
    }
    for (const StateTree::Node& size : {StateTree::Node(std::int64_t{-1}), StateTree::Node(0.5), StateTree::Node(true)})
        CHECK_FAULT(Value(tree, sequence(tree, Sequence::Kind::size, {size}), "w").shape(), Errc::field_missing);
    const std::vector<StateTree::Node> many(65, std::int64_t{1});
    check_missing([&] { Value(tree, sequence(tree, Sequence::Kind::list, many), "w").shape(); },
                  "the field w is not a shape of at most 64 dimensions");
    CHECK(Value(tree, sequence(tree, Sequence::Kind::tuple, {})).shape() == Shape());
}

TEST_CASE("tensors and attributes") {
    StateTree tree;
    const LazyTensor tensor("t", stored_run(Dtype::u8, {2}, forge::source("ab"), 0));
    const Value leaf(tree, tree.add(StateTree::Tensor{.tensor = tensor}), "w");
    REQUIRE(leaf.tensor() != nullptr);
    CHECK(leaf.tensor()->shape() == Shape{2});
    CHECK(!leaf.integer().has_value());
    StateTree::Dict with;
    with.attributes.emplace_back("_metadata", tree.add(std::int64_t{5}));
    const Value module(tree, tree.add(std::move(with)), "module");
    REQUIRE(module.attribute("_metadata").has_value());
    CHECK(module.attribute("_metadata")->integer() == 5);
    CHECK(module.attribute("_metadata")->where() == "module/_metadata");
    CHECK(!module.attribute("other").has_value());
    CHECK(!module.has("_metadata"));
}
