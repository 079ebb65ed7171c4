// Tests trees whose tensors have given names: the names that flatten_named() makes of them, and the structure document,
// which says the names where they are not the paths.
#include "state/structure.hpp"

#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "state/contents.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace named_tree_test {

using namespace safemap;
using NodeId = StateTree::NodeId;
using Kind = StateTree::Sequence::Kind;

namespace {

NodeId tensor(StateTree& tree) {
    return tree.add(StateTree::Tensor{
        .tensor = LazyTensor({}, stored_run(Dtype::u8, {1}, memory_source("file", std::vector<std::byte>(1)), 0))});
}
NodeId dict(StateTree& tree, std::vector<std::pair<std::string, NodeId>> items) {
    StateTree::Dict out;
    for (auto& [key, value] : items) out.items.emplace_back(tree.add(std::move(key)), value);
    return tree.add(std::move(out));
}

}  // namespace

TEST_CASE("a tensor has its given name, and tensors below an object the object's name and their path") {
    StateTree tree;
    const NodeId weight = tensor(tree);
    const NodeId plain = tensor(tree);
    const NodeId inner = tensor(tree);
    const NodeId object = dict(tree, {{"a.b", inner}, {"n", tree.add(std::int64_t{1})}});
    tree.set_root(dict(tree, {{"model", dict(tree, {{"w", weight}, {"other", plain}})}, {"extra", object}}));
    const FlatState flat = state::flatten_named(tree, {{weight, "model.w"}, {object, "the.extra"}});
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"model.w", "model/other", "the.extra/a.b"});
    CHECK(std::get<StateTree::Tensor>(tree[weight]).tensor.name() == "model.w");
    CHECK(std::get<StateTree::Tensor>(tree[inner]).tensor.name() == "the.extra/a.b");
    CHECK_FALSE(flat.verbatim);
    // The document says the names, and gives the tree back.
    const std::string document = state::structure_of(tree, [](const std::string& name) { return std::optional(name); });
    CHECK(document.find("model.w") != document.npos);
    const StateTree again = state::unflatten(document, [&](const std::string& name) {
        const auto found = std::find_if(flat.tensors.begin(), flat.tensors.end(),
                                        [&](const LazyTensor& each) { return each.name() == name; });
        return found == flat.tensors.end() ? nullptr : &*found;
    });
    CHECK(std::get<StateTree::Tensor>(again[*again.find("model/w")]).tensor.name() == "model.w");
    CHECK(std::get<std::int64_t>(again[*again.find("extra/n")]) == 1);
}

TEST_CASE("a path that is a given name of another tensor gets a number") {
    StateTree tree;
    const NodeId first = tensor(tree);
    const NodeId second = tensor(tree);
    tree.set_root(dict(tree, {{"a", dict(tree, {{"b", first}})}, {"c", second}}));
    const FlatState flat = state::flatten_named(tree, {{second, "a/b"}});
    const auto all = names_of(flat.tensors);
    CHECK(std::set(all.begin(), all.end()).size() == 2);
    CHECK(all[1] == "a/b");
    CHECK(all[0].starts_with("a/b"));
}

TEST_CASE("a flat dictionary has its keys as names only if no tensor has another name") {
    StateTree tree;
    const NodeId w = tensor(tree);
    tree.set_root(dict(tree, {{"model.w", w}, {"v", tensor(tree)}}));
    CHECK(state::has_keys_as_names(tree));
    StateTree same = tree;
    CHECK(names_of(state::flatten_named(same, {{w, "model.w"}}).tensors) == std::vector<std::string>{"model.w", "v"});
    CHECK(state::has_keys_as_names(same));
    StateTree other = tree;
    CHECK(names_of(state::flatten_named(other, {{w, "w"}}).tensors) == std::vector<std::string>{"w", "v"});
    CHECK(state::is_flat(other));
    CHECK_FALSE(state::has_keys_as_names(other));
    const std::string document =
        state::structure_of(other, [](const std::string& name) { return std::optional(name); });
    CHECK(document.find("model.w") != document.npos);
}

TEST_CASE("random trees with random names have unique names, and the given ones") {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        StateTree tree;
        state::NodeNames given;
        std::vector<NodeId> open;
        std::size_t tensors = 0;
        for (std::size_t i = 1 + random() % 20; i > 0; --i) {
            const auto kind = random() % 4;
            NodeId made = 0;
            if (kind < 2 || open.empty()) {
                made = tensor(tree);
                ++tensors;
            } else {
                std::vector<std::pair<std::string, NodeId>> items;
                StateTree::Sequence list{.kind = Kind::list};
                for (std::size_t take = 1 + random() % open.size(); take > 0; --take) {
                    list.items.push_back(open.back());
                    items.emplace_back("k" + std::to_string(items.size()), open.back());
                    open.pop_back();
                }
                made = kind == 2 ? tree.add(std::move(list)) : dict(tree, std::move(items));
            }
            if (random() % 3 == 0) given.emplace(made, (random() % 2 == 0 ? "k0/" : "k1.") + std::to_string(i));
            open.push_back(made);
        }
        tree.set_root(tree.add(StateTree::Sequence{.kind = Kind::list, .items = open}));
        const FlatState flat = state::flatten_named(tree, given);
        const auto all = names_of(flat.tensors);
        CHECK(all.size() == tensors);
        const std::set<std::string> unique(all.begin(), all.end());
        CHECK(unique.size() == tensors);
        for (const auto& [id, name] : given)
            if (std::holds_alternative<StateTree::Tensor>(tree[id])) CHECK(unique.contains(name));
    }
}

}  // namespace named_tree_test
