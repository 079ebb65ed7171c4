// Finding nodes by path, and taking a part of a tree.
#include <safemap/state_tree.hpp>

#include "doctest_safemap.hpp"

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
        std::get<StateTree::Sequence>(tree[shared]).items.push_back(tree.root());  // a ring
    }
};

}  // namespace

TEST_CASE("a node is found by the path that a tensor there would be named") {
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

TEST_CASE("a part of a tree is what its root leads to, with what is shared and rings") {
    const Training training;
    const StateTree part = training.tree.subtree(*training.tree.find("state/~s0"));
    CHECK(part.size() == 2);
    CHECK(std::get<double>(part[*part.find("~k0")]) == 2.5);
    const StateTree ring = training.tree.subtree(training.shared);
    CHECK(ring.size() == training.tree.size());
    CHECK(ring.find("2/state/0") == ring.root());
    CHECK(ring.find("2/state/a~1b") == ring.root());
}
