// Tests checkpoints of tensors and of trees in memory against twins: files with the same contents. From top to bottom:
// comparing two checkpoints, trees over memory and random files, lists, trees, refusals.
#include <safemap/checkpoint.hpp>

#include "base/faults.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/value.hpp"
#include "inspect.hpp"
#include "open/read.hpp"
#include "soak.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/plan.hpp>
#include <safemap/save.hpp>
#include <safemap/sink.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace in_memory_test {

using namespace safemap;
using NodeId = StateTree::NodeId;
using Metadata = std::vector<std::pair<std::string, std::string>>;
using Pairs = std::map<std::string, std::string>;

namespace {

const std::filesystem::path data = SAFEMAP_TEST_DATA;

/// Returns a tensor of these bytes in memory.
LazyTensor text(std::string name, std::string_view value) {
    const auto bytes = std::make_shared<std::vector<std::byte>>(forge::to_bytes(value));
    return LazyTensor(std::move(name), TensorView::row_major(Dtype::u8, {*bytes, bytes, true}, {bytes->size()}));
}

// ---- comparing two checkpoints

std::vector<std::byte> saved(const Checkpoint& checkpoint, const SaveOptions& options = {}) {
    std::vector<std::byte> bytes;
    static_cast<void>(save(*memory_sink("saved", bytes), checkpoint, options));
    return bytes;
}

Checkpoint opened(std::vector<std::byte> file) {
    return Checkpoint::open(memory_source("twin.safetensors", std::move(file)));
}

/// Returns the metadata without the fingerprint of the file that tensors came from, which memory does not have.
Pairs without_source(const Checkpoint& checkpoint) {
    const auto raw = checkpoint.raw_metadata();
    Pairs pairs(raw.begin(), raw.end());
    pairs.erase("safemap.source");
    return pairs;
}

std::string printed(const StateTree* tree) {
    std::ostringstream out;
    if (tree != nullptr) out << *tree;
    return out.str();
}

/// Checks that both have the same tensors, in this order, and the same values.
void check_same_tensors(const Checkpoint& a, const Checkpoint& b) {
    REQUIRE(names_of(a) == names_of(b));
    for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(a.tensor(i).name());
        CHECK(a.tensor(i).dtype() == b.tensor(i).dtype());
        CHECK(a.tensor(i).shape() == b.tensor(i).shape());
        CHECK(a.tensor(i).strided_view().strides == b.tensor(i).strided_view().strides);
        CHECK(bytes_of(a.tensor(i)) == bytes_of(b.tensor(i)));
    }
}

/// Checks all that a checkpoint in memory and its twin in a file have in common.
void check_same(const Checkpoint& memory, const Checkpoint& twin) {
    check_same_tensors(memory, twin);
    CHECK(memory.format() == twin.format());
    CHECK(memory.metadata() == twin.metadata());
    CHECK(memory.has_metadata() == twin.has_metadata());
    CHECK(memory.aliases() == twin.aliases());
    CHECK(memory.total_bytes() == twin.total_bytes());
    CHECK(memory.root() == twin.root());
    CHECK(names_of(memory.all_parts()) == names_of(twin.all_parts()));
    CHECK(memory.parts() == twin.parts());
    CHECK(names_of(memory.skipped()) == names_of(twin.skipped()));
    CHECK(printed(memory.tree()) == printed(twin.tree()));
    CHECK(structure_of(memory) == structure_of(twin));
    CHECK(memory.training().step == twin.training().step);
    CHECK(memory.training().epoch == twin.training().epoch);
    CHECK(memory.files().empty());
    CHECK_FALSE(memory.fingerprint());
    CHECK_FALSE(memory.optimizer());
    CHECK_FALSE(memory.layout());
    CHECK(memory.extras().files.empty());
    CHECK(memory.globals().empty());
    CHECK(memory.verdict() == Verdict::ok);
}

/// Checks that saves of both give the same file, but for the fingerprint.
void check_same_saved(const Checkpoint& memory, const Checkpoint& twin, const SaveOptions& options = {}) {
    const Checkpoint a = opened(saved(memory, options));
    const Checkpoint b = opened(saved(twin, options));
    CHECK(without_source(a) == without_source(b));
    check_same_tensors(a, b);
}

// ---- trees over memory, and random files

/// The storages of a file, loaded to memory. Tensors over them share their bytes, and nothing else.
class Storages {
public:
    LazyTensor in_memory(const LazyTensor& tensor) {
        if (tensor.element_count() == 0)
            return LazyTensor("empty", TensorView(tensor.dtype(), {}, tensor.strided_view()));
        if (tensor.piece_count() != 1) return LazyTensor("pieces", tensor.load());
        const auto known = loaded_.find(tensor.stored());
        const TensorView& storage =
            known != loaded_.end()
                ? known->second
                : loaded_.emplace(tensor.stored(), LazyTensor({}, tensor.stored()).load()).first->second;
        const SharedBytes bytes{storage.bytes(), storage.owner(), storage.writable()};
        const LazyTensor own("any name", TensorView(storage.dtype(), bytes, tensor.strided_view()));
        return LazyTensor("any name", own.stored(), own.strided_view(), tensor.decoding()).cast(tensor.dtype());
    }

private:
    std::map<std::shared_ptr<const StoredTensor>, TensorView> loaded_;
};

/// Returns the tree with all its tensors in memory.
StateTree in_memory(const StateTree& tree) {
    StateTree memory = tree;
    Storages storages;
    for (NodeId id = 0; id < memory.size(); ++id)
        if (auto* const node = std::get_if<StateTree::Tensor>(&memory[id]))
            node->tensor = storages.in_memory(node->tensor);
    return memory;
}

/// Returns {"state_dict": {"w": w, "tied": w}, "epoch": 3}.
StateTree one_part() {
    StateTree tree;
    const NodeId w = tree.add(StateTree::Tensor{.tensor = text("", "ab")});
    const NodeId weights =
        tree.add(StateTree::Dict{.items = {{tree.add(std::string("w")), w}, {tree.add(std::string("tied")), w}}});
    tree.set_root(tree.add(StateTree::Dict{.items = {{tree.add(std::string("state_dict")), weights},
                                                     {tree.add(std::string("epoch")), tree.add(std::int64_t{3})}}}));
    return tree;
}

/// Returns a value of a random state dict. Tensors share the storages.
pt::Value random_value(std::mt19937& random, std::vector<pt::StoragePtr>& storages, int depth) {
    const auto below = [&](std::size_t count) { return random() % count; };
    static const std::vector<std::string> keys{"w", "0", "a/b", "a.b", "", "state_dict", "model", "optimizer", "~"};
    const std::size_t kind = below(depth == 0 ? 4 : 8);
    if (kind == 0) return pt::integer(below(3));
    if (kind == 1) return pt::text(keys[below(keys.size())]);
    if (kind < 4) {
        if (storages.empty() || below(3) == 0)
            storages.push_back(pt::store(below(2) == 0 ? Dtype::f32 : Dtype::i32, forge::random_bytes(random, 24)));
        const std::uint64_t rows = below(3);
        pt::Value tensor = pt::tensor(storages[below(storages.size())], {rows, 2}, below(2));
        if (below(3) == 0) tensor.strides = {1, 2};
        return tensor;
    }
    pt::Value container = kind == 4 ? pt::list() : kind == 5 ? pt::ordered() : pt::dict();
    for (std::size_t n = below(4); n > 0; --n) {
        pt::Value value = random_value(random, storages, depth - 1);
        if (kind == 4) container.push(std::move(value));
        else if (const std::string& key = keys[below(keys.size())]; !container.has(key))
            container.set(key, std::move(value));
    }
    return container;
}

/// Calls `check` with the files of torch.save that torch and safemap wrote for tests, as far as they open.
template <class Check> void each_torch_file(Check&& check) {
    std::size_t opened = 0;
    for (const auto& entry : std::filesystem::directory_iterator(data / "pt")) {
        if (!entry.is_regular_file() || entry.path().extension() == ".py") continue;
        CAPTURE(entry.path().native());
        std::optional<Checkpoint> twin;
        try {
            twin = Checkpoint::open(entry.path());
        } catch (const Error&) {
            continue;
        }
        if (twin->format() != Format::torch || twin->tree() == nullptr) continue;
        ++opened;
        check(*twin);
    }
    CHECK(opened > 30);
}

}  // namespace

// ---- lists

TEST_CASE("a list with metadata is the checkpoint that a file of both opens as") {
    each_torch_file([](const Checkpoint& torch) {
        const std::vector<std::byte> file = saved(torch);
        const auto source = memory_source("twin.safetensors", file);
        const Checkpoint twin = Checkpoint::open(source);
        ThrowFirst faults;
        std::vector<LazyTensor> stored;
        for (const LazyTensor& tensor : open::read_tensors(source, {}, faults).tensors)
            stored.emplace_back(tensor.name(), tensor.load());
        const auto raw = twin.raw_metadata();
        const Checkpoint memory = Checkpoint::of(stored, {raw.begin(), raw.end()});
        check_same(memory, twin);
        CHECK(memory.notes() == twin.notes());
        CHECK(saved(memory) == file);
    });
}

TEST_CASE("a list may be empty, and keeps its order, its tensors and what select() and renamed() do") {
    const Checkpoint none = Checkpoint::of(std::span<const LazyTensor>());
    CHECK(none.empty());
    CHECK_FALSE(none.has_metadata());
    CHECK(none.tree() == nullptr);

    std::optional<Checkpoint> all =
        Checkpoint::of(std::vector{text("z", "zz"), text("a", "aa"), text("m", "mm")}, {{"who", "me"}});
    CHECK(all->format() == Format::safetensors);
    CHECK(names_of(*all) == std::vector<std::string>{"z", "a", "m"});
    CHECK(all->metadata() == Metadata{{"who", "me"}});
    CHECK(all->raw_metadata() == all->metadata());
    CHECK(all->residency().resident == 6);
    const ExpectedTensor expected[] = {{"a", Dtype::u8, {2}}, {"z", Dtype::u8, {2}}};
    const LoadPlan plan = plan_load(*all, expected, {.ignore_unexpected = true});
    CHECK(names_of(plan.unexpected) == std::vector<std::string>{"m"});
    CHECK(bytes_of(plan.tensors().front()) == "aa");
    const Checkpoint some = all->select(Selection::names({"m", "z"})).renamed([](std::string_view name) {
        return "n." + std::string(name);
    });
    all.reset();
    CHECK(names_of(some) == std::vector<std::string>{"n.z", "n.m"});
    CHECK(bytes_of(some["n.m"]) == "mm");
    CHECK(some.metadata() == Metadata{{"who", "me"}});
}

TEST_CASE("aliases are ties like those of the metadata, and each tensor has one group") {
    const std::vector tensors{text("w", "ww"), text("v", "vv")};
    const std::vector<AliasGroup> aliases{{"v", "v1"}, {"w", "b", "a"}, {"w"}, {"w", "c"}};
    const Checkpoint memory = Checkpoint::of(tensors, {{"a", "w"}, {"d", "w"}, {"e", "v"}, {"who", "w?"}}, aliases);
    CHECK(memory.aliases() == std::vector<AliasGroup>{{"v", "v1", "e"}, {"w", "b", "a", "c", "d"}});
    CHECK(bytes_of(memory["c"]) == "ww");
    CHECK(memory.metadata() == Metadata{{"a", "w"}, {"d", "w"}, {"e", "v"}, {"who", "w?"}});

    const Checkpoint twin = opened(saved(memory));
    CHECK(
        Pairs(twin.metadata().begin(), twin.metadata().end()) ==
        Pairs{
            {"a", "w"}, {"b", "w"}, {"c", "w"}, {"d", "w"}, {"e", "v"}, {"format", "pt"}, {"v1", "v"}, {"who", "w?"}});
    CHECK(all_names(twin).size() == all_names(memory).size());
    const Checkpoint other = memory.stored_as(std::vector<std::string>{"c"});
    CHECK(names_of(other) == std::vector<std::string>{"c", "v"});
    const Checkpoint renamed = opened(saved(other));
    CHECK(renamed.metadata().front() == std::pair<std::string, std::string>("a", "c"));
}

TEST_CASE("random lists save to the bytes that the list itself saves to") {
    const unsigned seed = soak::seed(5);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 40; ++round) {
        std::vector<LazyTensor> tensors;
        for (std::size_t n = random() % 6; n > 0; --n) {
            const LazyTensor whole =
                text("t" + std::to_string(random() % 100) + "." + std::to_string(n), forge::random_bytes(random, 24));
            const StridedView view = random() % 2 == 0 ? StridedView{{2, 3}, {1, 2}, 4} : StridedView{{3}, {-2}, 5};
            const TensorView memory = whole.view();
            const SharedBytes bytes{memory.bytes(), memory.owner(), true};
            tensors.push_back(random() % 3 == 0 ? whole
                                                : LazyTensor(whole.name(), TensorView(Dtype::u16, bytes, view)));
        }
        const Pairs metadata = random() % 2 == 0 ? Pairs{} : Pairs{{"step", "1"}, {"format", "np"}};
        std::vector<std::byte> file;
        static_cast<void>(save(*memory_sink("list", file), tensors, {.metadata = metadata}));
        CHECK(saved(Checkpoint::of(tensors, metadata)) == file);
    }
}

// ---- trees

TEST_CASE("the tree of a file, in memory, is the checkpoint that the file opens as") {
    each_torch_file([](const Checkpoint& twin) {
        const Checkpoint memory = Checkpoint::of(in_memory(*twin.tree()));
        CHECK(names_of(memory) == names_of(twin));
        CHECK(memory.aliases() == twin.aliases());
        CHECK(structure_of(memory) == structure_of(twin));
        CHECK(names_of(memory.skipped()) == names_of(twin.skipped()));
        check_same_saved(memory, twin);
        check_same_saved(memory, twin, {.structure = StructurePolicy::drop});
    });
}

TEST_CASE("random trees in memory are the checkpoints that files with them open as") {
    const unsigned seed = soak::seed(11);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 60; ++round) {
        CAPTURE(round);
        std::vector<pt::StoragePtr> storages;
        const Checkpoint twin =
            Checkpoint::open(forge::source(pt::Writer::file(random_value(random, storages, 4)), "model.pt"));
        const StateTree tree = in_memory(*twin.tree());
        const Checkpoint memory = Checkpoint::of(tree);
        check_same(memory, twin);
        CHECK(memory.notes() == twin.notes());
        check_same_saved(memory, twin);
        if (!twin.parts().empty()) {
            const std::string part = twin.parts().front();
            CHECK(names_of(memory.below(part)) == names_of(twin.below(part)));
            CHECK(names_of(Checkpoint::of(tree, {.root = part})) == names_of(twin.below(part)));
        }
    }
}

TEST_CASE("a tree may have cycles and shared containers, and is read back as it was") {
    StateTree tree;
    const NodeId shared = tree.add(StateTree::Dict{});
    const NodeId root = tree.add(StateTree::Dict{});
    const NodeId weight = tree.add(StateTree::Tensor{.tensor = text("ignored", "ab")});
    const NodeId dropped = tree.add(StateTree::Tensor{.tensor = text("dropped", "cd")});
    std::get<StateTree::Dict>(tree[shared]).items = {{tree.add(std::string("w")), weight},
                                                     {tree.add(std::string("root")), root}};
    std::get<StateTree::Dict>(tree[root]).items = {{tree.add(std::string("a")), shared},
                                                   {tree.add(std::string("b")), shared},
                                                   {tree.add(std::string("again")), weight}};
    tree.set_root(root);
    CHECK(dropped > 0);
    const Checkpoint memory = Checkpoint::of(tree);
    CHECK(names_of(memory) == std::vector<std::string>{"a/w"});
    CHECK(memory.aliases() == std::vector<AliasGroup>{{"a/w", "again"}});
    CHECK(memory.tree()->size() == tree.size() - 1);
    const Checkpoint twin = opened(saved(memory));
    CHECK(printed(twin.tree()) == printed(memory.tree()));
    CHECK(bytes_of(twin["again"]) == "ab");
}

TEST_CASE("the only entry of a tree that holds tensors is taken, unless the root is named") {
    const StateTree tree = one_part();
    const Checkpoint memory = Checkpoint::of(tree);
    CHECK(memory.format() == Format::torch);
    CHECK(names_of(memory) == std::vector<std::string>{"w"});
    CHECK(memory.root() == "state_dict");
    CHECK(memory.training().epoch == 3.0);
    CHECK(names_of(Checkpoint::of(tree, {.root = ""})) == std::vector<std::string>{"state_dict/w"});
    CHECK_FAULT(Checkpoint::of(tree, {.root = "model"}), Errc::invalid_argument);
}

TEST_CASE("tensors of a tree are tied if they are the same memory with the same dtype, shape and strides") {
    const auto bytes = std::make_shared<const std::vector<std::byte>>(forge::to_bytes("0123456789abcdef"));
    const auto names = [&](Dtype dtype, Shape shape, Strides strides, std::int64_t offset) {
        StateTree tree;
        const auto leaf = [&](Dtype of, const StridedView& view) {
            return tree.add(StateTree::Tensor{.tensor = LazyTensor("", TensorView(of, {*bytes, bytes, false}, view))});
        };
        const NodeId first = leaf(Dtype::u16, {{2, 2}, {2, 1}, 1});
        const NodeId other = leaf(dtype, {std::move(shape), std::move(strides), offset});
        tree.set_root(tree.add(
            StateTree::Dict{.items = {{tree.add(std::string("a")), first}, {tree.add(std::string("b")), other}}}));
        return Checkpoint::of(std::move(tree)).size();
    };
    CHECK(names(Dtype::u16, {2, 2}, {2, 1}, 1) == 1);
    CHECK(names(Dtype::i16, {2, 2}, {2, 1}, 1) == 2);
    CHECK(names(Dtype::u16, {2, 2}, {1, 2}, 1) == 2);
    CHECK(names(Dtype::u16, {4}, {1}, 1) == 2);
    CHECK(names(Dtype::u16, {2, 2}, {2, 1}, 2) == 2);
    CHECK(names(Dtype::u16, {2, 1}, {2, 1}, 1) == 2);
}

// ---- refusals

TEST_CASE("lists and trees that are no checkpoint are refused") {
    const std::vector tensors{text("w", "ww"), text("v", "vv")};
    const auto with = [&](std::vector<AliasGroup> aliases, Pairs metadata = {}) {
        return Checkpoint::of(tensors, std::move(metadata), aliases);
    };
    const auto tree_of = [](NodeId item, NodeId root) {
        StateTree tree;
        static_cast<void>(tree.add(StateTree::Sequence{.kind = StateTree::Sequence::Kind::list, .items = {item}}));
        tree.set_root(root);
        return tree;
    };
    const auto repeated_key = [&](std::size_t second) {
        StateTree tree;
        StateTree::Dict dict;
        for (const LazyTensor& tensor : {tensors[0], tensors[second]})
            dict.items.emplace_back(tree.add(std::string("w")), tree.add(StateTree::Tensor{.tensor = tensor}));
        tree.set_root(tree.add(std::move(dict)));
        return tree;
    };
    check_bad_calls({
        BAD_CALL(name_collision, Checkpoint::of(repeated_key(0))),
        BAD_CALL(name_collision, Checkpoint::of(repeated_key(1))),
        BAD_CALL(name_collision, Checkpoint::of(std::vector{text("w", "1"), text("w", "2")})),
        BAD_CALL(name_collision, with({{"w", "v"}})),
        BAD_CALL(name_collision, with({{"w", "w"}})),
        BAD_CALL(name_collision, with({{"w", "a"}, {"v", "a"}})),
        BAD_CALL(name_collision, with({{"w", "a", "a"}})),
        BAD_CALL(name_collision, with({{"w", "a"}}, {{"a", "v"}})),
        BAD_CALL(tensor_not_found, with({{"x", "a"}})),
        BAD_CALL(tensor_not_found, with({{"a", "w"}})),
        BAD_CALL(invalid_argument, with({{}})),
        BAD_CALL(bad_structure, with({}, {{"safemap.structure", "{"}})),
        BAD_CALL(invalid_argument, Checkpoint::of(StateTree())),
        BAD_CALL(invalid_argument, Checkpoint::of(tree_of(1, 0))),
        BAD_CALL(invalid_argument, Checkpoint::of(tree_of(0, 1))),
        BAD_CALL(invalid_argument, Checkpoint::of(tree_of(StateTree::no_node, 0))),
    });
    const auto bad_save = [&](Errc code, const std::string& name, const Pairs& metadata = {}) {
        CHECK_FAULT(saved(Checkpoint::of(std::vector{text(name, "w")}, metadata)), code);
    };
    bad_save(Errc::name_collision, "__metadata__");
    bad_save(Errc::invalid_argument, "\xff");
    bad_save(Errc::bad_name, std::string("a\0b", 3));
    bad_save(Errc::invalid_argument, "w", {{"key", "\xff"}});
    CHECK_FAULT(saved(with({{"w", "safemap.x"}})), Errc::name_collision);
}

// ---- the metadata as files have it

TEST_CASE("raw_metadata() gives the pairs that a file has, whatever the checkpoint took of them and was renamed to") {
    const Pairs plain{{"format", "pt"}, {"tied", "w"}, {"who", "me"}};
    const Checkpoint file = opened(saved(Checkpoint::of(std::vector{text("w", "ww")}, plain)));
    const auto raw = [](const Checkpoint& checkpoint) {
        const auto pairs = checkpoint.raw_metadata();
        return Pairs(pairs.begin(), pairs.end());
    };
    CHECK(raw(file) == plain);
    CHECK(raw(file.select(Selection::names({"tied"})).renamed([](auto name) { return "n." + std::string(name); })) ==
          plain);

    CHECK(Checkpoint::open(data / "pt/lightning.ckpt").raw_metadata().empty());

    const TempDir dir;
    const Checkpoint torch = Checkpoint::of(one_part());
    static_cast<void>(save(dir / "one.safetensors", torch, {.metadata = {{"who", "me"}}}));
    const Checkpoint one = Checkpoint::open(dir / "one.safetensors");
    REQUIRE(one.tree() != nullptr);
    const Pairs wanted{{"format", "pt"},
                       {"safemap.root", "state_dict"},
                       {"safemap.structure", structure_of(one)},
                       {"tied", "w"},
                       {"who", "me"}};
    CHECK(raw(one) == wanted);
    const Checkpoint paths = Checkpoint::open(dir / "one.safetensors", {.root = ""});
    CHECK(names_of(paths) == std::vector<std::string>{"state_dict/w"});
    CHECK(raw(paths) == wanted);
    CHECK(raw(one.below("state_dict")) == wanted);

    const Checkpoint nested = Checkpoint::open(data / "pt/lightning.ckpt");
    static_cast<void>(save(dir / "many", nested, {.max_shard_size = 100, .metadata = plain}));
    const Checkpoint many = Checkpoint::open(dir / "many");
    CHECK(many.files().size() > 1);
    CHECK(raw(many).at("safemap.structure") == structure_of(many));
    for (const auto& [key, value] : many.metadata()) CHECK(raw(many).at(key) == value);
    std::vector<std::filesystem::path> files;
    for (const std::string& name : many.files()) files.push_back(dir / "many" / name);
    const Checkpoint list = Checkpoint::open(files);
    CHECK(list.raw_metadata() == list.metadata());

    std::filesystem::resize_file(dir / "one.safetensors", 100);
    CHECK_FAULT(one.raw_metadata(), Errc::file_changed);
}

}  // namespace in_memory_test
