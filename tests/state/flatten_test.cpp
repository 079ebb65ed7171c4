// Tests names: examples of the grammar, random trees against the slow reference, and trees designed to be expensive.
#include <safemap/state_tree.hpp>

#include <safemap/advanced/flatten.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "reference/slow_flatten.hpp"

#include <random>
#include <string>

namespace flatten_test {

using namespace safemap;
using NodeId = StateTree::NodeId;
using Kind = StateTree::Sequence::Kind;

namespace {

std::shared_ptr<const StoredTensor> store(std::size_t elements = 8) {
    return stored_run(Dtype::f32, Shape{elements}, memory_source("memory", std::vector<std::byte>(4 * elements)), 0);
}

NodeId tensor(StateTree& tree, const std::shared_ptr<const StoredTensor>& stored, std::int64_t offset = 0,
              std::uint64_t size = 2) {
    return tree.add(
        StateTree::Tensor{.tensor = LazyTensor({}, stored, {.shape = {size}, .strides = {1}, .offset = offset})});
}
NodeId tensor(StateTree& tree) { return tensor(tree, store()); }
NodeId text(StateTree& tree, std::string value) { return tree.add(std::move(value)); }

/// Returns the name of a tensor under one key of a dictionary that is not flat.
std::string name_of_key(StateTree::Node key) {
    StateTree tree;
    StateTree::Dict dict;
    dict.items.emplace_back(tree.add(std::move(key)), tensor(tree));
    const NodeId inner = tree.add(std::move(dict));
    tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = {inner}}));
    const auto flat = flatten(tree);
    REQUIRE(flat.tensors.size() == 1);
    return flat.tensors[0].name();
}

}  // namespace

TEST_CASE("keys are escaped to path segments by the grammar") {
    using namespace std::string_literals;
    const std::pair<std::string, std::string> strings[]{
        {"weight", "0/weight"},
        {"a.b", "0/a.b"},
        {"a/b", "0/a~1b"},
        {"a~b", "0/a~0b"},
        {"", "0/~s"},
        {"0", "0/~s0"},
        {"-1", "0/~s-1"},
        {"01", "0/~s01"},
        {"-", "0/-"},
        {"1a", "0/1a"},
        {"__metadata__", "0/~s__metadata__"},
        {"~0", "0/~00"},
        {"~s", "0/~0s"},
        {"nul\0"s, "0/~k0"},
        {"\xed\xa0\x80", "0/~k0"},
        {"\xc3\xa9", "0/\xc3\xa9"},
    };
    for (const auto& row : strings) {
        const auto& key = row.first;  // not a structured binding: Clang 14 cannot capture those
        const auto& wanted = row.second;
        CAPTURE(wanted);
        CHECK(name_of_key(key) == wanted);
    }
    CHECK(name_of_key(std::int64_t{0}) == "0/0");
    CHECK(name_of_key(std::int64_t{-7}) == "0/-7");
    CHECK(name_of_key(true) == "0/~true");
    CHECK(name_of_key(false) == "0/~false");
    CHECK(name_of_key(StateTree::None{}) == "0/~none");
    CHECK(name_of_key(StateTree::BigInt{"18446744073709551616"}) == "0/18446744073709551616");
    CHECK(name_of_key(2.5) == "0/~k0");
    CHECK(name_of_key(StateTree::Bytes{.bytes = "raw"}) == "0/~k0");
    CHECK(name_of_key(StateTree::Constant{.kind = StateTree::Constant::Kind::dtype, .text = "float32"}) == "0/~k0");
}

TEST_CASE("a flat dictionary keeps its keys, and ties are aliases") {
    for (const bool ordered : {false, true}) {
        StateTree tree;
        const auto stored = store();
        StateTree::Dict dict{.ordered = ordered};
        const NodeId shared = tensor(tree, stored);
        dict.items = {{text(tree, "a/b"), shared},
                      {text(tree, "0"), shared},
                      {text(tree, "again"), tensor(tree, stored)},
                      {text(tree, "other"), tensor(tree, stored, 1)}};
        dict.attributes = {{"_metadata", tree.add(StateTree::Dict{})}};
        tree.set_root(tree.add(std::move(dict)));
        const auto flat = flatten(tree);
        CHECK(flat.verbatim);
        CHECK(names_of(flat.tensors) == std::vector<std::string>{"a/b", "other"});
        REQUIRE(flat.aliases.size() == 1);
        CHECK(flat.aliases[0] == AliasGroup{"a/b", "0", "again"});
        REQUIRE(flat.lost_without_structure.size() == 1);
        CHECK(flat.lost_without_structure[0].find("_metadata") != std::string::npos);
    }
}

TEST_CASE("a dictionary with other values than tensors is named by paths") {
    for (int odd = 0; odd < 5; ++odd) {
        CAPTURE(odd);
        StateTree tree;
        StateTree::Dict dict;
        dict.items = {{text(tree, "a/b"), tensor(tree)}};
        if (odd == 0) dict.items.emplace_back(text(tree, "step"), tree.add(std::int64_t{3}));
        if (odd == 1) dict.items.emplace_back(text(tree, ""), tensor(tree));
        if (odd == 2) dict.items.emplace_back(text(tree, "__metadata__"), tensor(tree));
        if (odd == 3) dict.items.emplace_back(tree.add(std::int64_t{0}), tensor(tree));
        if (odd == 4) dict.items.emplace_back(tree.add(std::string("n\0", 2)), tensor(tree));
        tree.set_root(tree.add(std::move(dict)));
        const auto flat = flatten(tree);
        CHECK_FALSE(flat.verbatim);
        CHECK(flat.tensors[0].name() == "a~1b");
    }
}

TEST_CASE("an empty tree, an empty dictionary and a tensor alone") {
    CHECK(flatten(StateTree()).tensors.empty());
    StateTree empty;
    empty.set_root(empty.add(StateTree::Dict{}));
    CHECK(flatten(empty).verbatim);
    StateTree alone;
    alone.set_root(tensor(alone));
    CHECK(names_of(flatten(alone).tensors) == std::vector<std::string>{"~root"});
}

TEST_CASE("tensors without elements are tied only if they are one object") {
    StateTree tree;
    const auto stored = store();
    const NodeId nothing = tensor(tree, stored, 0, 0);
    tree.set_root(
        tree.add(StateTree::Sequence{.kind = Kind::tuple, .items = {nothing, tensor(tree, stored, 0, 0), nothing}}));
    const auto flat = flatten(tree);
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"0", "1"});
    REQUIRE(flat.aliases.size() == 1);
    CHECK(flat.aliases[0] == AliasGroup{"0", "2"});
}

TEST_CASE("plain values are counted in one note") {
    StateTree tree;
    StateTree::Dict dict;
    dict.items = {{text(tree, "w"), tensor(tree)},
                  {text(tree, "lr"), tree.add(0.1)},
                  {text(tree, "steps"), tree.add(std::int64_t{3})}};
    tree.set_root(tree.add(std::move(dict)));
    const auto flat = flatten(tree);
    REQUIRE(flat.lost_without_structure.size() == 1);
    CHECK(flat.lost_without_structure[0].find("2 values are not tensors") == 0);
    CHECK(flat.lost_without_structure[0].find("lr") != std::string::npos);
}

TEST_CASE("opaque objects without a name are noted") {
    StateTree tree;
    StateTree::Dict dict;
    dict.items.emplace_back(text(tree, "w"), tensor(tree));
    dict.attributes.emplace_back("extra", tree.add(StateTree::Opaque{.type = "my.Thing", .why = "unknown"}));
    tree.set_root(tree.add(dict));
    const auto flat = flatten(tree);
    CHECK(flat.skipped.empty());
    REQUIRE(flat.notes.size() == 1);
    CHECK(flat.notes[0].find("1 object of unknown classes, for example my.Thing") == 0);

    dict.items.emplace_back(text(tree, "other"), dict.attributes.front().second);
    tree.set_root(tree.add(dict));
    CHECK(flatten(tree).notes.empty());
}

TEST_CASE("random trees have the names of the slow reference, and names are unique") {
    std::mt19937 random(42);
    using namespace std::string_literals;
    const std::vector<std::string> keys{
        "", "a", "b", "a/b", "a~b", "~s", "0", "1", "-1", "__metadata__", "~true", "\xed\xa0\x80", "x\0"s};
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        StateTree tree;
        const auto stored = store(16);
        const std::size_t size = 1 + random() % 25;
        // Children are arbitrary nodes, so containers are shared and cycles are common.
        const auto any = [&] { return static_cast<NodeId>(random() % size); };
        for (std::size_t i = 0; i < size; ++i) {
            switch (random() % 9) {
                case 0:
                case 1:
                    tensor(tree, random() % 2 ? stored : store(), static_cast<std::int64_t>(random() % 3),
                           random() % 3);
                    break;
                case 2: tree.add(std::int64_t(random() % 3)); break;
                case 3: tree.add(random() % 2 == 0); break;
                case 4: text(tree, keys[random() % keys.size()]); break;
                case 5:
                case 6: {
                    StateTree::Sequence sequence{.kind = static_cast<Kind>(random() % 4)};
                    for (std::size_t n = random() % 4; n > 0; --n) sequence.items.push_back(any());
                    tree.add(std::move(sequence));
                    break;
                }
                case 7: {
                    StateTree::Dict dict{.ordered = random() % 2 == 0};
                    for (std::size_t n = random() % 4; n > 0; --n) dict.items.emplace_back(any(), any());
                    tree.add(std::move(dict));
                    break;
                }
                default: {
                    StateTree::Opaque opaque{.type = random() % 2 == 0 ? "x.Y" : "torch.Tensor", .why = "unknown"};
                    for (std::size_t n = random() % 3; n > 0; --n)
                        opaque.children.emplace_back(keys[random() % keys.size()], any());
                    tree.add(std::move(opaque));
                }
            }
        }
        tree.set_root(any());
        const SlowFlatten slow(tree);
        const auto flat = flatten(tree);
        CHECK(flat.verbatim == slow.verbatim);
        std::vector<std::string> wanted;
        std::vector<AliasGroup> aliases;
        for (const auto& group : slow.groups) {
            wanted.push_back(group[0].name);
            AliasGroup tied;
            for (const auto& each : group) tied.push_back(each.name);
            if (tied.size() > 1) aliases.push_back(tied);
        }
        CHECK(names_of(flat.tensors) == wanted);
        CHECK(flat.aliases == aliases);
        std::vector<std::string> skipped;
        for (const auto& each : flat.skipped) skipped.push_back(each.name);
        CHECK(skipped == slow.skipped);
    }
}

TEST_CASE("a container that occurs again is noted and not visited again") {
    StateTree tree;
    const NodeId inner = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {tensor(tree)}});
    tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = {inner, inner}}));
    const auto flat = flatten(tree);
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"0/0"});
    CHECK(flat.aliases.empty());
    REQUIRE(flat.lost_without_structure.size() == 1);
    CHECK(flat.lost_without_structure[0].find("again at 1") != std::string::npos);
}

TEST_CASE("deep, shared and long-named trees cost no more than their size") {
    SUBCASE("nested lists") {
        StateTree tree;
        NodeId id = tensor(tree);
        for (int i = 0; i < 300'000; ++i) id = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {id}});
        tree.set_root(id);
        const auto flat = flatten(tree);
        REQUIRE(flat.tensors.size() == 1);
        CHECK(flat.tensors[0].name().size() == 2 * 300'000 - 1);
    }
    SUBCASE("tuples that hold the previous one twice") {
        StateTree tree;
        NodeId id = tensor(tree);
        for (int i = 0; i < 200; ++i) id = tree.add(StateTree::Sequence{.kind = Kind::tuple, .items = {id, id}});
        tree.set_root(id);
        CHECK(flatten(tree).tensors.size() == 1);
    }
    SUBCASE("a tensor on each level of a deep list") {
        StateTree tree;
        NodeId id = tree.add(StateTree::None{});
        for (int i = 0; i < 50'000; ++i)
            id = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {tensor(tree), id}});
        tree.set_root(id);
        const auto flat = flatten(tree);
        std::size_t bytes = 0;
        for (const auto& each : flat.tensors) bytes += each.name().size();
        CHECK(bytes <= 100'000'000);
        CHECK(flat.tensors.size() > 5'000);
        CHECK(only_of(flat.notes).find("no name") != std::string::npos);
        REQUIRE_FALSE(flat.skipped.empty());  // a loss is always reported
        CHECK(flat.skipped[0].name.starts_with("1/1/1/1"));
        CHECK(flat.skipped.size() <= 1000);
    }
    SUBCASE("one long key in many dictionaries") {
        StateTree tree;
        const NodeId key = text(tree, std::string(1'000'000, 'k'));
        StateTree::Sequence list{.kind = Kind::list};
        for (int i = 0; i < 20'000; ++i) {
            StateTree::Dict dict;
            dict.items.emplace_back(key, tree.add(StateTree::Sequence{.kind = Kind::list, .items = {}}));
            list.items.push_back(tree.add(std::move(dict)));
        }
        tree.set_root(tree.add(std::move(list)));
        CHECK(flatten(tree).tensors.empty());
    }
}

}  // namespace flatten_test
