// Tests typed access to the tree of a rank: what is there, what is missing, and messages that name the field.
#include "distributed/values.hpp"

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace values_test {

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
    check_error(error_of(run), {Errc::field_missing}, {}, {.message = message});
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
        CHECK(!value.global().has_value());
        CHECK(value.integer().has_value() == std::holds_alternative<std::int64_t>(node));
        check_missing([&] { value.at("a"); }, "the field w/a is missing");
        check_missing([&] { value.items(); }, "the field w is not a list");
        check_missing([&] { value.entries(); }, "the field w is not a dictionary");
        const bool is_number =
            std::holds_alternative<std::int64_t>(node) || std::holds_alternative<StateTree::BigInt>(node);
        check_missing([&] { value.count(); },
                      is_number ? "the field w is not in the range from 0 to 2^63 - 1" : "the field w is not a number");
        check_missing([&] { value.shape(); }, "the field w is not a shape");
    }
    check_missing([&] { Value(tree, tree.add(true)).items(); }, "the file is not a list");
}

TEST_CASE("a container that is in many places is not read without end") {
    StateTree tree;
    StateTree::Dict names;
    for (int i = 0; i < 2000; ++i) names.items.emplace_back(tree.add("name " + std::to_string(i)), tree.add(true));
    const std::vector<StateTree::NodeId> places(5000, tree.add(std::move(names)));
    tree.set_root(tree.add(Sequence{Sequence::Kind::list, places}));
    std::size_t read = 0;
    check_error(error_of([&] {
                    for (const Value& each : Value(tree).items()) read += each.entries().size();
                }),
                {Errc::pickle_too_large}, {});
    CHECK(read > 100 * 2000);
    CHECK(read < 500 * 2000);
}

TEST_CASE("a long key that is in many places is not read without end") {
    StateTree tree;
    const StateTree::NodeId key = tree.add(std::string(1 << 20, 'x'));
    Sequence list{Sequence::Kind::list};
    for (int i = 0; i < 1000; ++i) list.items.push_back(tree.add(StateTree::Dict{.items = {{key, tree.add(true)}}}));
    const StateTree::NodeId inner = tree.add(list);
    tree.set_root(tree.add(StateTree::Dict{.items = {{key, inner}}}));
    const Value below = Value(tree).entries().front().second;
    CHECK(below.items().back().where().size() < 2000);
    const auto read_all = [&] {
        for (const Value& each : below.items()) each.entries();
    };
    CHECK_FAULT(read_all(), Errc::pickle_too_large);
}

TEST_CASE("a large tree without such containers is read several times") {
    StateTree tree;
    Sequence list{Sequence::Kind::list};
    for (int i = 0; i < 1 << 20; ++i) list.items.push_back(tree.add(true));
    tree.set_root(tree.add(list));
    const Value root(tree);
    for (int i = 0; i < 4; ++i) CHECK(root.items().size() == 1 << 20);
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
    CHECK(Value(tree, tree.add(0.5)).real() == 0.5);
    CHECK(Value(tree, tree.add(std::int64_t{-3})).real() == -3.0);
    CHECK(object({std::int64_t{3}}, 1).real() == 3.0);
    CHECK(!Value(tree, tree.add(true)).real().has_value());
    CHECK(!Value(tree, tree.add(std::string("3"))).real().has_value());
}

TEST_CASE("lists and shapes") {
    StateTree tree;
    const std::vector<StateTree::Node> sizes = {std::int64_t{2}, std::int64_t{0}, largest};
    for (const auto kind : {Sequence::Kind::list, Sequence::Kind::tuple, Sequence::Kind::size, Sequence::Kind::set,
                            Sequence::Kind::frozenset}) {
        const Value value(tree, sequence(tree, kind, sizes), "w");
        const bool is_list = kind != Sequence::Kind::set && kind != Sequence::Kind::frozenset;
        CHECK(value.is_list() == is_list);
        if (is_list) CHECK(value.items().size() == 3);
        if (is_list) CHECK(value.items()[2].where() == "w/2");
        if (is_list) CHECK(value.shape() == Shape{2, 0, static_cast<std::uint64_t>(largest)});
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

}  // namespace values_test
