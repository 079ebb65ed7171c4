// Tests finding nodes by path, and subtrees.
#include <safemap/state_tree.hpp>

#include <safemap/advanced/stored_tensor.hpp>

#include "doctest_safemap.hpp"

#include <sstream>

namespace state_tree_test {

using namespace safemap;
using NodeId = StateTree::NodeId;
using Kind = StateTree::Sequence::Kind;

namespace {

struct Training {
    StateTree tree;
    NodeId step = 0;
    NodeId member = 0;
    NodeId shared = 0;

    Training() {
        const auto text = [&](const char* value) { return tree.add(std::string(value)); };
        step = tree.add(std::int64_t{7});
        member = tree.add(2.5);
        shared = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {text("x"), step}});
        StateTree::Dict inner;
        inner.items = {{tree.add(std::int64_t{0}), shared},
                       {text("0"), tree.add(StateTree::Sequence{.kind = Kind::set, .items = {member}})},
                       {text("a/b"), shared}};
        StateTree::Dict root;
        root.items = {
            {text("state"), tree.add(std::move(inner))},
            {text("args"), tree.add(StateTree::Opaque{.type = "x.Y", .why = "unknown", .children = {{"lr", step}}})}};
        tree.set_root(tree.add(std::move(root)));
        std::get<StateTree::Sequence>(tree[shared]).items.push_back(tree.root());  // a cycle
    }
};

}  // namespace

TEST_CASE("a node is found by the path that names a tensor there") {
    const Training training;
    const StateTree& tree = training.tree;
    CHECK(tree.find("") == tree.root());
    CHECK(tree.find("state/0/1") == training.step);
    CHECK(tree.find("state/~s0/~k0") == training.member);
    CHECK(tree.find("state/a~1b") == training.shared);
    CHECK(tree.find("state/0/2/state/0") == training.shared);
    CHECK(tree.find("args/lr") == training.step);
    for (const char* path :
         {"x", "state/", "state/1", "state/0/3", "state/0/1/0", "/state", "state//0", "args/x", "~"}) {
        CAPTURE(path);
        CHECK_FALSE(tree.find(path));
    }
    CHECK_FALSE(StateTree().find(""));
}

TEST_CASE("a subtree is everything below its root, with sharing and cycles") {
    const Training training;
    const StateTree part = training.tree.subtree(*training.tree.find("state/~s0"));
    CHECK(part.size() == 2);
    CHECK(std::get<double>(part[*part.find("~k0")]) == 2.5);
    const StateTree ring = training.tree.subtree(training.shared);
    CHECK(ring.size() == training.tree.size());
    CHECK(ring.find("2/state/0") == ring.root());
    CHECK(ring.find("2/state/a~1b") == ring.root());
}

TEST_CASE("nodes are put and erased by path") {
    Training training;
    StateTree& tree = training.tree;
    const NodeId nine = tree.add(std::int64_t{9});
    const auto value = [&](const char* path) { return std::get<std::int64_t>(tree[*tree.find(path)]); };
    for (const char* path : {"state/0/1", "state/0/3", "state/new~0key~1", "state/7", "state/~s7", "state/~none",
                             "state/~true", "args/lr", "args/eps", "epoch"}) {
        CAPTURE(path);
        tree.put(path, nine);
        REQUIRE(tree.find(path).has_value());
        CHECK(value(path) == 9);
    }
    const auto& state = std::get<StateTree::Dict>(tree[*tree.find("state")]);
    CHECK(std::get<std::string>(tree[state.items[3].first]) == "new~key/");
    CHECK(std::get<std::int64_t>(tree[state.items[4].first]) == 7);
    CHECK(std::get<std::string>(tree[state.items[5].first]) == "7");
    CHECK(std::get<bool>(tree[state.items[7].first]));
    for (const char* path : {"state/0/5", "state/0/x", "x/y", "state/~s0/~k3", "state/~k9", "state/a~", "state/a~2",
                             "state/~sx", "epoch/0", "args/~s7"}) {
        CAPTURE(path);
        CHECK_FAULT(tree.put(path, nine), Errc::invalid_argument);
    }
    CHECK(tree.erase("state/0/0"));
    CHECK(value("state/0/0") == 9);
    CHECK(tree.erase("state/~none"));
    CHECK_FALSE(tree.erase("state/~none"));
    CHECK_FALSE(tree.erase("state/0/9"));
    CHECK_FALSE(tree.erase("nothing/there"));
    CHECK_FALSE(tree.erase(""));
    CHECK(tree.erase("args/lr"));
    CHECK_FALSE(tree.find("args/lr").has_value());
    tree.put("", nine);
    CHECK(tree.root() == nine);
}

TEST_CASE("the arguments after an erased one move up") {
    StateTree tree;
    const NodeId one = tree.add(std::int64_t{1});
    const NodeId two = tree.add(std::int64_t{2});
    tree.set_root(tree.add(
        StateTree::Opaque{.type = "a.B", .why = {}, .children = {{"0", one}, {"1", two}, {"x", one}}, .arguments = 2}));
    CHECK(tree.erase("0"));
    CHECK(tree.find("0") == two);
    CHECK_FALSE(tree.find("1").has_value());
    CHECK(tree.find("x") == one);
}

TEST_CASE("the number of arguments is updated when one is erased") {
    StateTree tree;
    const NodeId one = tree.add(std::int64_t{1});
    tree.set_root(tree.add(
        StateTree::Opaque{.type = "a.B", .why = {}, .children = {{"0", one}, {"1", one}, {"x", one}}, .arguments = 2}));
    CHECK(tree.erase("1"));
    CHECK(std::get<StateTree::Opaque>(tree[tree.root()]).arguments == 1);
    CHECK(tree.erase("x"));
    CHECK(std::get<StateTree::Opaque>(tree[tree.root()]).arguments == 1);
}

TEST_CASE("a tree is printed folded, and stops at a cycle") {
    const auto printed = [](const StateTree& tree) {
        std::ostringstream out;
        out << tree;
        return out.str();
    };
    CHECK(printed(Training().tree) ==
          "state\n  0\n    0  'x'\n    1  7\n    2  the same as '~root'\n  ~s0  {2.5}\n"
          "  a~1b  the same as 'state/0'\nargs  x.Y\n  lr  7\n");
    CHECK(printed(StateTree()) == "");

    StateTree tree;
    const auto stored = stored_run(Dtype::bf16, Shape{6}, memory_source("memory", std::vector<std::byte>(12)), 0);
    StateTree::Sequence layers{.kind = Kind::list};
    for (int i = 0; i < 12; ++i) {
        const NodeId tensor = tree.add(StateTree::Tensor{.tensor = LazyTensor({}, stored).slice({})});
        layers.items.push_back(tree.add(StateTree::Dict{.items = {{tree.add(std::string("w")), tensor}}}));
    }
    StateTree::Dict root;
    root.items = {{tree.add(std::string("layers")), tree.add(std::move(layers))},
                  {tree.add(std::string("cfg")), tree.add(StateTree::Dict{})}};
    tree.set_root(tree.add(std::move(root)));
    CHECK(printed(tree) == "layers\n  {0..11}\n    w  BF16 [6]  x 12\ncfg  {}\n");

    StateTree::Sequence numbers{.kind = Kind::tuple};
    for (std::int64_t i = 0; i < 1000; ++i) numbers.items.push_back(tree.add(i));
    tree.set_root(tree.add(std::move(numbers)));
    const std::string line = printed(tree);
    CHECK(line.starts_with("(0, 1, 2, "));
    CHECK(line.ends_with(", ... 1000 in all)\n"));
    CHECK(line.size() < 120);

    // Keys that no path segment can express are printed below their place.
    StateTree::Dict pairs;
    const NodeId pair = tree.add(
        StateTree::Sequence{.kind = Kind::tuple, .items = {tree.add(std::int64_t{1}), tree.add(std::int64_t{2})}});
    pairs.items = {{pair, tree.add(std::int64_t{3})},
                   {tree.add(2.5), tree.add(StateTree::Sequence{.kind = Kind::list, .items = {pair}})}};
    tree.set_root(tree.add(std::move(pairs)));
    CHECK(printed(tree) == "~k0  3\n  ~key  (1, 2)\n~k1\n  0  (1, 2)\n  ~key  2.5\n");

    // Long keys nested in each other, with endless lines below them.
    StateTree::Sequence many{.kind = Kind::list};
    const NodeId empty = tree.add(StateTree::Dict{.items = {{tree.add(std::string("x")), tree.add(std::int64_t{1})}}});
    for (int i = 0; i < 100'000; ++i) many.items.push_back(i % 2 == 0 ? empty : tree.add(StateTree::Dict{}));
    NodeId around = tree.add(std::move(many));
    for (int i = 0; i < 60; ++i)
        around = tree.add(StateTree::Dict{.items = {{tree.add(std::string(190, 'k')), around}}});
    tree.set_root(around);
    const std::string cut = printed(tree);
    CHECK(cut.find("more than is shown") != std::string::npos);
    CHECK(cut.size() < (std::size_t{2} << 20));

    NodeId deep = tree.add(StateTree::None{});
    for (int i = 0; i < 100'000; ++i) deep = tree.add(StateTree::Sequence{.kind = Kind::list, .items = {deep}});
    tree.set_root(deep);
    CHECK(printed(tree).find("...") != std::string::npos);
}

}  // namespace state_tree_test
