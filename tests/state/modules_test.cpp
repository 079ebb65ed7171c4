// Tests whole torch.nn modules in a tree. From top to bottom: trees of modules, names and order of state_dict(),
// objects that are not modules, omissions, shared and cyclic modules, costs, random trees.
#include "state/modules.hpp"

#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "state/structure.hpp"

#include <safemap/advanced/flatten.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace modules_test {

using namespace safemap;
using safemap::state::structure_of;
using safemap::state::unflatten;
using NodeId = StateTree::NodeId;
using Kind = StateTree::Sequence::Kind;

namespace {

using Entries = std::vector<std::pair<std::string, NodeId>>;

/// The content of a module's __dict__.
struct Parts {
    Entries parameters = {};
    Entries buffers = {};
    Entries modules = {};
    std::vector<std::string> not_persistent = {};
    Entries before = {};  ///< attributes before the dictionaries
    Entries after = {};
    bool names_persistent = true;
};

class Tree : public StateTree {
public:
    NodeId tensor() {
        const auto source = memory_source("memory", std::vector<std::byte>(8));
        return add(Tensor{.tensor = LazyTensor({}, stored_run(Dtype::f32, Shape{2}, source, 0))});
    }
    NodeId text(std::string value) { return add(std::move(value)); }
    NodeId dict(const Entries& entries) {
        Dict dict;
        for (const auto& [key, value] : entries) dict.items.emplace_back(text(key), value);
        return add(std::move(dict));
    }
    NodeId list(std::vector<NodeId> items) { return add(Sequence{.kind = Kind::list, .items = std::move(items)}); }
    NodeId object(Entries parts) { return add(Opaque{.type = "x.Y", .why = "unknown", .children = std::move(parts)}); }
    NodeId module(const Parts& parts) {
        Entries all = parts.before;
        all.emplace_back("_parameters", dict(parts.parameters));
        all.emplace_back("_buffers", dict(parts.buffers));
        Sequence set{.kind = Kind::set};
        for (const std::string& name : parts.not_persistent) set.items.push_back(text(name));
        if (parts.names_persistent) all.emplace_back("_non_persistent_buffers_set", add(std::move(set)));
        all.emplace_back("_modules", dict(parts.modules));
        all.insert(all.end(), parts.after.begin(), parts.after.end());
        return object(std::move(all));
    }
    NodeId linear() { return module({.parameters = {{"weight", tensor()}, {"bias", tensor()}}}); }
};

std::vector<std::string> skipped(const FlatState& flat) {
    std::vector<std::string> out;
    for (const SkippedObject& each : flat.skipped) out.push_back(each.name);
    return out;
}

std::string document_of(const StateTree& tree) {
    const auto stored = names_of(flatten(tree).tensors);
    return structure_of(tree, [&](const std::string& name) {
        const bool is_stored = std::find(stored.begin(), stored.end(), name) != stored.end();
        return is_stored ? std::optional(name) : std::nullopt;
    });
}
StateTree read(const std::string& document, const FlatState& flat) {
    std::map<std::string, LazyTensor> tensors;
    for (const LazyTensor& each : flat.tensors) tensors.emplace(each.name(), each);
    return unflatten(document, [&](const std::string& name) {
        const auto found = tensors.find(name);
        return found == tensors.end() ? nullptr : &found->second;
    });
}
/// Returns modules and other containers within each other, some in several places, some in themselves. In torch, a
/// module's parameters, buffers and modules never share a key; `disjoint` ensures that.
Tree random_tree(std::mt19937& random, const std::vector<std::string>& keys, bool disjoint) {
    Tree tree;
    std::vector<NodeId> nodes{tree.tensor(), tree.add(std::int64_t{1})};
    const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
    const auto entries = [&](std::size_t most, const std::string& kind = {}) {
        Entries out;
        for (std::size_t i = below(most + 1); i-- > 0;) {
            const std::string key = kind + keys[below(keys.size())];
            const bool known = std::any_of(out.begin(), out.end(), [&](const auto& each) { return each.first == key; });
            const NodeId value = below(3) == 0 ? nodes[below(nodes.size())] : nodes.back();
            if (!known) out.emplace_back(key, below(4) == 0 ? tree.tensor() : value);
        }
        return out;
    };
    for (int i = 0; i < 12; ++i) {
        const std::size_t kind = below(6);
        if (kind == 0) nodes.push_back(tree.dict(entries(3)));
        else if (kind == 1) nodes.push_back(tree.object(entries(3)));
        else if (kind == 2) nodes.push_back(tree.list({nodes[below(nodes.size())], tree.tensor()}));
        else
            nodes.push_back(tree.module({.parameters = entries(2, disjoint ? "p" : ""),
                                         .buffers = entries(2, disjoint ? "b" : ""),
                                         .modules = entries(3, disjoint ? "m" : ""),
                                         .not_persistent = {(disjoint ? "b" : "") + keys[below(keys.size())]},
                                         .before = entries(below(3), "x"),
                                         .after = entries(below(3), "y")}));
        if (below(8) == 0 && kind == 2) std::get<StateTree::Sequence>(tree[nodes.back()]).items.push_back(nodes.back());
    }
    tree.set_root(nodes.back());
    return tree;
}

/// Returns the tree without tensor names, as Checkpoint::below() has it.
StateTree without_names(StateTree tree) {
    for (NodeId id = 0; id < tree.size(); ++id)
        if (auto* const tensor = std::get_if<StateTree::Tensor>(&tree[id])) tensor->tensor = tensor->tensor.renamed({});
    return tree;
}

}  // namespace

TEST_CASE("a module at the root has the names and the order of its state dict") {
    Tree tree;
    const NodeId norm = tree.module({.parameters = {{"weight", tree.tensor()}, {"bias", tree.add(StateTree::None{})}},
                                     .buffers = {{"mean", tree.tensor()}, {"count", tree.tensor()}}});
    const NodeId inner = tree.module({.modules = {{"0", tree.linear()}, {"a/b", norm}}});
    tree.set_root(tree.module({.parameters = {{"scale", tree.tensor()}},
                               .buffers = {{"kept", tree.tensor()}},
                               .modules = {{"1", inner}, {"0", tree.linear()}}}));
    const FlatState flat = flatten(tree);
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"scale", "kept", "1.0.weight", "1.0.bias", "1.a/b.weight",
                                                             "1.a/b.mean", "1.a/b.count", "0.weight", "0.bias"});
    CHECK(skipped(flat) == std::vector<std::string>{"~root"});
    CHECK_FALSE(flat.verbatim);
}

TEST_CASE("the names of a module elsewhere begin with its path") {
    Tree tree;
    const NodeId net = tree.module({.modules = {{"0", tree.linear()}}});
    tree.set_root(tree.dict({{"step", tree.add(std::int64_t{3})},
                             {"model/0", net},
                             {"list", tree.list({tree.linear(), tree.dict({{"7", net}})})},
                             {"trainer", tree.object({{"net", tree.linear()}})}}));
    const FlatState flat = flatten(tree);
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"model~10/0.weight", "model~10/0.bias", "list/0/weight",
                                                             "list/0/bias", "trainer/net/weight", "trainer/net/bias"});
    CHECK(flat.aliases == std::vector<AliasGroup>{{"model~10/0.weight", "list/1/~s7/0.weight"},
                                                  {"model~10/0.bias", "list/1/~s7/0.bias"}});
}

TEST_CASE("an object that lacks one of the dictionaries is not a module") {
    for (const std::string missing : {"_parameters", "_buffers", "_modules"}) {
        CAPTURE(missing);
        Tree tree;
        const NodeId linear = tree.linear();
        auto& children = std::get<StateTree::Opaque>(tree[linear]).children;
        std::erase_if(children, [&](const auto& child) { return child.first == missing; });
        children.emplace_back("other", tree.tensor());
        tree.set_root(linear);
        CHECK(flatten(tree).tensors.back().name() == "other");
        children = std::get<StateTree::Opaque>(tree[linear]).children;
        std::get<StateTree::Opaque>(tree[linear]).children.emplace_back(missing, tree.list({}));
        CHECK_FALSE(state::is_module(tree, tree[linear]));
    }
}

TEST_CASE("tensors that the state dict omits are skipped, unless they have a name elsewhere") {
    Tree tree;
    const NodeId weight = tree.tensor();
    const NodeId elsewhere = tree.tensor();
    const NodeId again = tree.add(std::get<StateTree::Tensor>(tree[weight]));  // the same elements
    const NodeId net = tree.module({.parameters = {{"weight", weight}},
                                    .buffers = {{"mask", tree.tensor()}, {"kept", tree.tensor()}},
                                    .not_persistent = {"mask"},
                                    .before = {{"early", tree.list({weight, again, tree.tensor()})}},
                                    .after = {{"late", elsewhere}, {"config", tree.object({})}}});
    tree.set_root(tree.dict({{"net", tree.module({.modules = {{"a", net}}})}, {"table", elsewhere}}));
    const FlatState flat = flatten(tree);
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"net/a.weight", "net/a.kept", "table"});
    CHECK(flat.aliases.empty());
    CHECK(skipped(flat) == std::vector<std::string>{"net", "net/a.mask", "net/a.early/2", "net/a.config"});
    CHECK(flat.skipped[1].why.find("persistent") != std::string::npos);
    CHECK(flat.skipped[2].why.find("attribute") != std::string::npos);
    CHECK(flat.notes.empty());

    // The document has them at their paths, and names the stored tensors.
    const std::string document = document_of(tree);
    CHECK(document.find(R"("early":["l",["T",{"n":"net/a.weight"}],)") != std::string::npos);
    CHECK(document.find(R"("mask":["o","torch.Tensor",)") != std::string::npos);
    CHECK(document.find(R"("late":["T",{"n":"table"}])") != std::string::npos);
    const StateTree found = read(document, flat);
    CHECK(document_of(found) == document);
    CHECK(names_of(flatten(without_names(found)).tensors) == names_of(flat.tensors));
}

TEST_CASE("before torch 1.6 all buffers are persistent") {
    Tree tree;
    tree.set_root(tree.module({.buffers = {{"mask", tree.tensor()}}, .names_persistent = false}));
    CHECK(names_of(flatten(tree).tensors) == std::vector<std::string>{"mask"});
}

TEST_CASE("a module that occurs twice has both names, and a cycle ends") {
    Tree tree;
    const NodeId shared = tree.linear();
    const NodeId ring = tree.module({.modules = {{"a", shared}, {"b", shared}}});
    tree.set_root(ring);
    for (const auto& [name, part] : std::get<StateTree::Opaque>(tree[ring]).children)
        if (name == "_modules") {
            const NodeId key = tree.text("self");
            std::get<StateTree::Dict>(tree[part]).items.emplace_back(key, ring);
            break;
        }
    const FlatState flat = flatten(tree);
    CHECK(names_of(flat.tensors) == std::vector<std::string>{"a.weight", "a.bias"});
    CHECK(flat.aliases == std::vector<AliasGroup>{{"a.weight", "b.weight"}, {"a.bias", "b.bias"}});
    CHECK(flat.skipped.size() == 1);
    const StateTree found = read(document_of(tree), flat);
    CHECK(flatten(without_names(found)).aliases == flat.aliases);
}

TEST_CASE("names are unique for any keys") {
    Tree tree;
    const NodeId parts = tree.object({{"indices", tree.tensor()}});
    const NodeId dotted = tree.module({.parameters = {{"b", tree.tensor()}}});
    const NodeId plain = tree.module({.modules = {{"b", tree.tensor()}}});
    const NodeId empty = tree.module({.parameters = {{"", tree.tensor()}, {"x\xff", tree.tensor()}}});
    tree.set_root(
        tree.module({.parameters = {{"w", parts}, {"w/indices", tree.tensor()}, {"__metadata__", tree.tensor()}},
                     .modules = {{"a.a", dotted}, {"a", tree.module({.modules = {{"a", plain}}})}, {"e", empty}}}));
    const FlatState flat = flatten(tree);
    CHECK(names_of(flat.tensors) ==
          std::vector<std::string>{"w/indices", "w/indices~1", "~s__metadata__", "a.a.b", "a.a.b~2", "e.~s", "e.~k1"});
    CHECK(names_of(flatten(without_names(read(document_of(tree), flat))).tensors) == names_of(flat.tensors));
}

TEST_CASE("nested modules cost no more than their number") {
    SUBCASE("each twice in the next one: 2^60 names") {
        Tree tree;
        NodeId module = tree.linear();
        for (int i = 0; i < 60; ++i) module = tree.module({.modules = {{"a", module}, {"b", module}}});
        tree.set_root(module);
        const FlatState flat = flatten(tree);
        CHECK(flat.tensors.size() == 2);
        CHECK(flat.aliases.front().size() < 20'000);
        REQUIRE_FALSE(flat.lost_without_structure.empty());
        CHECK(flat.lost_without_structure.back().find("more than once") != std::string::npos);
    }
    SUBCASE("the same without a tensor") {
        Tree tree;
        NodeId module = tree.module({});
        for (int i = 0; i < 60; ++i) module = tree.module({.modules = {{"a", module}, {"b", module}}});
        tree.set_root(module);
        CHECK(flatten(tree).tensors.empty());
    }
    SUBCASE("very deep") {
        Tree tree;
        NodeId module = tree.linear();
        for (int i = 0; i < 2'000; ++i) module = tree.module({.modules = {{"a", module}}});
        tree.set_root(module);
        CHECK_OK(flatten(tree));
        CHECK_FAULT(document_of(tree), Errc::structure_too_large);
    }
}

TEST_CASE("in random trees, names are unique, lead to their tensors, and survive the document") {
    const std::vector<std::string> plain{"a", "b", "0", "1", "w"};
    const std::vector<std::string> hard{"a", "b", "a.b", "a/b", "", "~1", "__metadata__", "0"};
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::size_t in_modules = 0;
    for (int i = 0; i < 60; ++i) {
        CAPTURE(i);
        const Tree tree = random_tree(random, i % 2 == 0 ? plain : hard, i % 2 == 0);
        const FlatState flat = flatten(tree);
        std::vector<std::string> all = names_of(flat.tensors);
        for (const AliasGroup& group : flat.aliases) all.insert(all.end(), group.begin() + 1, group.end());
        std::sort(all.begin(), all.end());
        REQUIRE(std::adjacent_find(all.begin(), all.end()) == all.end());
        for (const LazyTensor& tensor : flat.tensors) {
            if (i % 2 == 1 || flat.verbatim) break;  // keys with dots may lead elsewhere; verbatim names are not paths
            CAPTURE(tensor.name());
            const auto found = tree.find(tensor.name() == "~root" ? "" : tensor.name());
            REQUIRE(found);
            REQUIRE(std::get<StateTree::Tensor>(tree[*found]).tensor.stored() == tensor.stored());
            in_modules += tensor.name().find('.') != std::string::npos ? 1 : 0;
        }

        const std::string document = document_of(tree);
        const StateTree again = read(document, flat);
        REQUIRE(structure_of(again, [](const std::string& name) { return name; }) == document);
        const FlatState second = flatten(without_names(again));
        REQUIRE(names_of(second.tensors) == names_of(flat.tensors));
        REQUIRE(second.aliases == flat.aliases);
        for (std::size_t t = 0; t < flat.tensors.size(); ++t)
            REQUIRE(second.tensors[t].stored() == flat.tensors[t].stored());
    }
    CHECK(in_modules > 0);
}

TEST_CASE("names in modules lead to their tensors") {
    Tree tree;
    const NodeId kept = tree.tensor();
    const NodeId mask = tree.tensor();
    const NodeId attribute = tree.tensor();
    const NodeId inner = tree.module({.parameters = {{"weight", kept}},
                                      .buffers = {{"mask", mask}},
                                      .not_persistent = {"mask"},
                                      .after = {{"table", tree.list({attribute})}}});
    const NodeId net = tree.module({.modules = {{"a/b", inner}}});
    tree.set_root(tree.dict({{"net", net}}));
    CHECK(tree.find("net/a/b.weight") == kept);
    CHECK(tree.find("net/a/b.mask") == mask);
    CHECK(tree.find("net/a/b.table/0") == attribute);
    CHECK(tree.find("net/a/b") == inner);
    CHECK(tree.find("net/_modules/a~1b/_parameters/weight") == kept);
    for (const char* path : {"net/a/b.", "net/a", "net/a/b/weight", "net.a/b", "net/a/b.weight.", "net/a/b.weigh"}) {
        CAPTURE(path);
        CHECK_FALSE(tree.find(path));
    }
    tree.put("net/a/b.weight", attribute);
    CHECK(tree.find("net/a/b.weight") == attribute);
    CHECK_FAULT(tree.put("net/new", kept), Errc::invalid_argument);
    CHECK(tree.erase("net/a/b.weight"));
    CHECK_FALSE(tree.find("net/a/b.weight"));
}

}  // namespace modules_test
