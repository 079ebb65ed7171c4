// Tests the tree of a DCP checkpoint: random paths give what torch's set_element() makes of them, and paths that
// contradict each other, or ask for too much, are refused.
#include "distributed/dcp/dcp_tree.hpp"

#include "doctest_safemap.hpp"
#include "soak.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dcp_tree_test {

using namespace safemap;
using distributed::DcpEntry;
using distributed::DcpMetadata;
using distributed::DcpStep;
using distributed::DcpTree;

namespace {

using Step = std::variant<std::string, std::int64_t>;
using Path = std::vector<Step>;
using NodeId = StateTree::NodeId;

LazyTensor tensor(const std::string& name) {
    return {name, stored_run(Dtype::u8, {1}, memory_source("file", std::vector<std::byte>(1)), 0)};
}

/// Names and paths, some of tensors and some of objects.
struct Saved {
    DcpMetadata metadata = {};
    std::vector<StateTree> objects = {};
    std::map<std::string, std::uint32_t> texts = {};

    void add(const std::string& name, const Path& path, bool is_tensor) {
        DcpEntry entry{.name = name, .tensor = is_tensor, .first_step = metadata.steps.size()};
        entry.step_count = static_cast<std::uint32_t>(path.size());
        for (const Step& step : path) {
            if (const auto* place = std::get_if<std::int64_t>(&step)) {
                metadata.steps.push_back({.place = *place});
                continue;
            }
            const auto& text = std::get<std::string>(step);
            const auto [known, unmet] = texts.try_emplace(text, static_cast<std::uint32_t>(texts.size()));
            if (unmet) metadata.texts.push_back(text);
            metadata.steps.push_back({.text = known->second});
        }
        metadata.entries.push_back(entry);
    }

    /// Builds the tree; the object of an entry is a list with its name.
    DcpTree build() {
        DcpTree tree(metadata);
        for (const DcpEntry& entry : metadata.entries) {
            if (entry.tensor) {
                tree.add(entry, tensor(entry.name));
                continue;
            }
            StateTree object;
            const NodeId name = object.add(entry.name);
            object.set_root(object.add(StateTree::Sequence{StateTree::Sequence::Kind::list, {name}}));
            objects.push_back(std::move(object));
            tree.add(entry, static_cast<std::uint32_t>(objects.size() - 1), objects);
        }
        return tree;
    }
};

/// Returns a tree as Python prints it, with tensors and objects as their names.
std::string printed(const StateTree& tree, const DcpTree& names, NodeId id) {
    if (const auto found = names.names().find(id); found != names.names().end()) {
        if (const auto* leaf = std::get_if<StateTree::Tensor>(&tree[id])) CHECK(leaf->tensor.name() == found->second);
        else CHECK(std::get<std::string>(tree[std::get<StateTree::Sequence>(tree[id]).items.at(0)]) == found->second);
        return found->second;
    }
    if (std::holds_alternative<StateTree::None>(tree[id])) return "None";
    std::string out;
    if (const auto* dict = std::get_if<StateTree::Dict>(&tree[id])) {
        for (const auto& [key, value] : dict->items)
            out += '\'' + std::get<std::string>(tree[key]) + "': " + printed(tree, names, value) + ", ";
        return '{' + out + '}';
    }
    for (const NodeId item : std::get<StateTree::Sequence>(tree[id]).items) out += printed(tree, names, item) + ", ";
    return '[' + out + ']';
}

/// A Python value, and set_element() word by word, with the checks that Python makes when it runs.
struct Value {
    enum class Kind : std::uint8_t { none, leaf, dict, list } kind = Kind::none;
    std::string leaf = {};
    std::vector<std::pair<std::string, Value>> items = {};
    std::vector<Value> list = {};

    struct Contradiction {};

    Value& at(const Step& step) {
        if (kind == Kind::dict && std::holds_alternative<std::string>(step)) {
            const auto& key = std::get<std::string>(step);
            for (auto& [name, value] : items)
                if (name == key) return value;
            return items.emplace_back(key, Value{}).second;
        }
        if (kind == Kind::list && std::holds_alternative<std::int64_t>(step)) {
            while (static_cast<std::int64_t>(list.size()) <= std::get<std::int64_t>(step)) list.emplace_back();
            return list[static_cast<std::size_t>(std::get<std::int64_t>(step))];
        }
        throw Contradiction();
    }
    void set(const Path& path, const std::string& value) {
        Value* container = this;
        for (std::size_t i = 1; i < path.size(); ++i) {
            container = &container->at(path[i - 1]);
            if (container->kind == Kind::none)
                container->kind = std::holds_alternative<std::string>(path[i]) ? Kind::dict : Kind::list;
        }
        Value& place = container->at(path.back());
        if (place.kind != Kind::none) throw Contradiction();  // set_element() would forget a value
        place = {.kind = Kind::leaf, .leaf = value};
    }
    std::string text() const {
        std::string out;
        switch (kind) {
            case Kind::none: return "None";
            case Kind::leaf: return leaf;
            case Kind::dict:
                for (const auto& [key, value] : items) out += '\'' + key + "': " + value.text() + ", ";
                return '{' + out + '}';
            case Kind::list: break;
        }
        for (const Value& item : list) out += item.text() + ", ";
        return '[' + out + ']';
    }
};

Path random_path(std::mt19937& random, std::size_t keys) {
    Path path = {"k" + std::to_string(random() % keys)};
    for (std::size_t more = random() % 4; more > 0; --more) {
        if (random() % 3 == 0) path.emplace_back(static_cast<std::int64_t>(random() % 4));
        else path.emplace_back("k" + std::to_string(random() % keys));
    }
    return path;
}

Errc fault_of(const std::vector<Path>& paths) {
    Saved saved;
    for (const Path& path : paths) saved.add("n" + std::to_string(saved.metadata.entries.size()), path, true);
    const auto error = error_of([&] { saved.build(); });
    REQUIRE(error.has_value());
    CHECK_FALSE(error->tensor().empty());
    return error->code();
}

}  // namespace

TEST_CASE("random paths give what torch makes of them") {
    const unsigned seed = soak::seed(18);
    CAPTURE(seed);
    std::mt19937 random(seed);
    int built = 0;
    int refused = 0;
    for (int round = 0; round < soak::rounds(4000); ++round) {
        Saved saved;
        Value expected{.kind = Value::Kind::dict};
        bool contradicts = false;
        const std::size_t keys = 2 + random() % 12;
        for (std::size_t i = 1 + random() % 12; i > 0; --i) {
            const std::string name = "n" + std::to_string(i);
            const Path path = random_path(random, keys);
            saved.add(name, path, random() % 3 != 0);
            try {
                if (!contradicts) expected.set(path, name);
            } catch (const Value::Contradiction&) {
                contradicts = true;
            }
        }
        ++(contradicts ? refused : built);
        std::optional<DcpTree> tree;
        const auto error = error_of([&] { tree.emplace(saved.build()); });
        REQUIRE(error.has_value() == contradicts);
        if (error) CHECK((error->code() == Errc::duplicate_name || error->code() == Errc::field_missing));
        if (error) continue;
        const StateTree made = tree->take();
        CHECK(printed(made, *tree, made.root()) == expected.text());
    }
    CHECK(built > 20);
    CHECK(refused > 20);
}

TEST_CASE("an entry without a path is a key of the root") {
    Saved saved;
    saved.add("a.b", {}, true);
    saved.add("c", {"a.b.c"}, false);
    saved.add("d", {}, false);
    DcpTree tree = saved.build();
    CHECK(tree.add("common.pt", StateTree()) == "common.pt");
    CHECK(tree.add("d", StateTree()) == "d.2");
    CHECK(tree.add("d", StateTree()) == "d.3");
    const StateTree made = tree.take();
    CHECK(std::get<StateTree::Dict>(made[made.root()]).items.size() == 6);
    // Two names, one key.
    Saved twice;
    twice.add("a.b", {}, true);
    twice.add("c", {"a.b"}, true);
    CHECK_FAULT(twice.build(), Errc::duplicate_name);
}

TEST_CASE("one object at two paths is one node") {
    Saved saved;
    saved.add("one", {"one"}, false);
    saved.add("two", {"deep", "two"}, false);
    DcpTree tree(saved.metadata);
    std::vector<StateTree> objects(1);
    objects[0].set_root(objects[0].add(std::int64_t{5}));
    tree.add(saved.metadata.entries[0], 0, objects);
    tree.add(saved.metadata.entries[1], 0, objects);
    const StateTree made = tree.take();
    CHECK(made.find("one") == made.find("deep/two"));
}

TEST_CASE("paths that contradict each other are refused") {
    CHECK(fault_of({{"a"}, {"a"}}) == Errc::duplicate_name);
    CHECK(fault_of({{"a", "b"}, {"a"}}) == Errc::duplicate_name);
    CHECK(fault_of({{"a", 1}, {"a", 1}}) == Errc::duplicate_name);
    CHECK(fault_of({{"a"}, {"a", "b"}}) == Errc::field_missing);
    CHECK(fault_of({{"a"}, {"a", 0}}) == Errc::field_missing);
    CHECK(fault_of({{"a", "b"}, {"a", 0}}) == Errc::field_missing);
    CHECK(fault_of({{"a", 0}, {"a", "b"}}) == Errc::field_missing);
    CHECK(fault_of({{0}}) == Errc::field_missing);
    CHECK(fault_of({{"a", -1}}) == Errc::field_missing);
    CHECK(fault_of({{"a", std::numeric_limits<std::int64_t>::min(), "b"}}) == Errc::field_missing);
}

TEST_CASE("a place in a list is bounded by the number of paths") {
    for (const std::int64_t place : {std::int64_t{1'000'000'000}, std::numeric_limits<std::int64_t>::max()}) {
        CHECK(fault_of({{"a", place}}) == Errc::pickle_too_large);
        CHECK(fault_of({{"a", place, "b"}}) == Errc::pickle_too_large);
    }
    std::vector<Path> many;
    for (int i = 0; i < 40; ++i) many.push_back({"k" + std::to_string(i), 100'000});
    CHECK(fault_of(many) == Errc::pickle_too_large);
    Saved saved;
    saved.add("far", {"a", 100'000}, true);
    DcpTree tree = saved.build();
    const StateTree made = tree.take();
    CHECK(std::get<StateTree::Sequence>(made[*made.find("a")]).items.size() == 100'001);
}

}  // namespace dcp_tree_test
