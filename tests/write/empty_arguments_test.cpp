// Tests null pointers, empty functions and objects that were moved from, as arguments of every public function that
// takes them: an error or a harmless value, never a signal. tests/device/empty_handles_test.cpp has those of devices.
#include "check_error.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/dlpack.hpp>
#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/file.hpp>
#include <safemap/advanced/flatten.hpp>
#include <safemap/advanced/fold.hpp>
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/shard_writer.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/text.hpp>
#include <safemap/safemap.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace empty_arguments_test {

using namespace safemap;

using Files = std::vector<std::filesystem::path>;
using Sources = std::vector<std::shared_ptr<const Source>>;

const char* const no_text = nullptr;
const std::shared_ptr<const Source> no_source;
const std::shared_ptr<const StoredTensor> no_stored;
const std::shared_ptr<const SourceTable> no_table;

std::shared_ptr<const StoredTensor> six_floats() {
    return stored_run(Dtype::f32, {2, 3}, memory_source("memory", std::vector<std::byte>(24)), 0);
}

/// Returns an object that was moved from. The tests are about the use of those.
template <class T> T moved_from(T object) {
    const T taken = std::move(object);
    return object;  // NOLINT(bugprone-use-after-move)
}

TEST_CASE("a null pointer is invalid") {
    const TempDir dir;
    save(dir / "model.safetensors", std::vector{LazyTensor("w", six_floats())});
    const Checkpoint model = Checkpoint::open(dir / "model.safetensors");
    Extras none;
    none.files.push_back({.name = "config.json", .source = nullptr});
    dlpack::ManagedTensorVersioned no_data;
    no_data.dl_tensor.ndim = 1;
    std::int64_t three = 3;
    dlpack::ManagedTensorVersioned no_bytes = no_data;
    no_bytes.dl_tensor.shape = &three;
    check_bad_calls({
        BAD_CALL(invalid_argument, Checkpoint::open(no_text)),
        BAD_CALL(invalid_argument, Checkpoint::open(nullptr)),
        BAD_CALL(invalid_argument, Checkpoint::open(no_source)),
        BAD_CALL(invalid_argument, Checkpoint::open(Sources{nullptr})),
        BAD_CALL(invalid_argument, model[no_text]),
        BAD_CALL(invalid_argument, LazyTensor("w", no_stored)),
        BAD_CALL(invalid_argument, LazyTensor("w", no_stored, StridedView{})),
        BAD_CALL(invalid_argument, SourceTable({nullptr})),
        BAD_CALL(invalid_argument, stored_run(Dtype::f32, {2}, no_source, 0)),
        BAD_CALL(invalid_argument, stored_runs(Dtype::f32, {2}, std::vector<RunPiece>{{.count = 2}})),
        BAD_CALL(invalid_argument, stored_runs(Dtype::f32, {2}, no_table, {})),
        BAD_CALL(invalid_argument, stored_boxes(Dtype::f32, {2}, std::vector<BoxPiece>{{.place = {{0}, {2}}}})),
        BAD_CALL(invalid_argument, stored_boxes(Dtype::f32, {2}, no_table, {})),
        BAD_CALL(invalid_argument, save(dir / "out", model, {.extras = none})),
        BAD_CALL(invalid_argument, dlpack::import_tensor(static_cast<dlpack::ManagedTensor*>(nullptr))),
        BAD_CALL(invalid_argument, dlpack::import_tensor(static_cast<dlpack::ManagedTensorVersioned*>(nullptr))),
        BAD_CALL(invalid_argument, dlpack::import_tensor(&no_data)),
        BAD_CALL(invalid_argument, dlpack::import_tensor(&no_bytes)),
    });
    CHECK(model.find(no_text) == nullptr);
    CHECK(model.find(nullptr) == nullptr);
}

TEST_CASE("an empty function is invalid where it is not optional") {
    const TempDir dir;
    save(dir / "model.safetensors", std::vector{LazyTensor("w", six_floats())});
    const Checkpoint model = Checkpoint::open(dir / "model.safetensors");
    ShardWriter writer(dir / "out.safetensors", std::vector<Declaration>{{"w", Dtype::f32, {2, 3}}});
    const ShardWriter::Fill no_fill;
    check_bad_calls({
        BAD_CALL(invalid_argument, callback_source("s", 8, {})),
        BAD_CALL(invalid_argument, callback_sink("s", {})),
        BAD_CALL(invalid_argument, model.renamed({})),
        BAD_CALL(invalid_argument, fold(0, {})),
        BAD_CALL(invalid_argument, fold(2, {})),
        BAD_CALL(invalid_argument, writer.write("w", no_fill)),
        BAD_CALL(invalid_argument, writer.write_range("w", {0, 4}, no_fill)),
        BAD_CALL(invalid_argument, writer.write_box("w", {{0, 0}, {1, 1}}, no_fill)),
    });
    writer.write("w", std::vector<std::byte>(24));  // a refused write changes nothing
    CHECK(writer.commit().tensors == 1);
    CHECK(diff(model, model, {.rename = {}}).equal());
    CHECK_OK(model.prefetch({}, Work{}));
    CHECK_OK(save(dir / "again.safetensors", model, {.work = {}, .on_plan = {}}));
}

TEST_CASE("an empty path or list is refused") {
    const TempDir dir;
    save(dir / "model.safetensors", std::vector{LazyTensor("w", six_floats())});
    const Checkpoint model = Checkpoint::open(dir / "model.safetensors");
    check_bad_calls({
        BAD_CALL(path_not_found, Checkpoint::open("")),
        BAD_CALL(invalid_argument, Checkpoint::open(Files())),
        BAD_CALL(invalid_argument, Checkpoint::open(Sources())),
        BAD_CALL(path_not_found, Checkpoint::open(Files{""})),
        BAD_CALL(path_not_found, open_file("")),
        BAD_CALL(path_not_found, verify("")),
        BAD_CALL(path_not_found, read_expected("")),
        BAD_CALL(path_not_found, plan_load(model, "")),
        BAD_CALL(invalid_argument, save("", model)),
        BAD_CALL(invalid_argument, file_sink("")),
        BAD_CALL(invalid_argument, ShardWriter("", std::vector<Declaration>())),
        BAD_CALL(path_not_found, edit("", {})),
        BAD_CALL(path_not_found, repair("", dir / "out.safetensors")),
        BAD_CALL(tensor_not_found, model[""]),
        BAD_CALL(invalid_argument, model.below("no such part")),
        BAD_CALL(invalid_argument, open_descriptor(-1, "")),
        BAD_CALL(expectation_not_json, parse_expected("")),
    });
    CHECK(model.find("") == nullptr);
    CHECK(tensors_of_rank(std::span<const LazyTensor>(), {}, {}).empty());
    CHECK(name_parts("").size() <= 1);
    CHECK(prefix_of("").empty());
    CHECK(number_ranges({}).size() <= 2);
    CHECK(printable("").empty());
    CHECK_FALSE(parse_dtype("").has_value());
    CHECK(memory_source("", std::vector<std::byte>())->size() == 0);
    CHECK(memory_source("", SharedBytes())->size() == 0);
}

TEST_CASE("a tensor that was moved from has lost its name and nothing else") {
    LazyTensor tensor("w", six_floats(), StridedView{{3, 2}, {1, 3}, 0});
    LazyTensor taken = std::move(tensor);
    CHECK(taken.name() == "w");
    CHECK(tensor.name().empty());  // NOLINT(bugprone-use-after-move)
    CHECK(tensor.shape() == Shape{3, 2});
    CHECK(tensor.load().nbytes() == 24);
    LazyTensor other("o", six_floats());
    taken = std::move(other);
    CHECK(taken.name() == "o");
    CHECK(taken.shape() == Shape{2, 3});
    CHECK(other.slice({{.stop = 1}}).nbytes() == 12);  // NOLINT(bugprone-use-after-move)
    CHECK(other.cast(Dtype::f64).load().nbytes() == 48);
    LazyTensor& same = taken;
    taken = std::move(same);
    CHECK(taken.nbytes() == 24);
    static_assert(std::is_nothrow_move_constructible_v<LazyTensor> && std::is_nothrow_move_assignable_v<LazyTensor>);
}

TEST_CASE("views and ranges of elements are copied when they are moved, so both keep the bytes") {
    TensorView view = LazyTensor("w", six_floats()).load();
    const TensorView taken = std::move(view);
    CHECK(view.as<float>().data() == taken.as<float>().data());  // NOLINT(bugprone-use-after-move)
    CHECK(view.owner() == taken.owner());
    CHECK(view.at<float>(1, 2) == 0);
    Elements<float> elements = view.unaligned<float>();
    const Elements<float> kept = std::move(elements);
    CHECK(std::distance(elements.begin(), elements.end()) == 6);  // NOLINT(bugprone-use-after-move)
    CHECK(kept.size() == 6);
}

TEST_CASE("a checkpoint that was moved from is the same checkpoint") {
    const TempDir dir;
    save(dir / "model.safetensors", std::vector{LazyTensor("w", six_floats())});
    Checkpoint model = Checkpoint::open(dir / "model.safetensors");
    const Checkpoint taken = std::move(model);
    CHECK(model.size() == 1);  // NOLINT(bugprone-use-after-move)
    CHECK(model["w"].nbytes() == taken["w"].nbytes());
}

TEST_CASE("a writer that was moved from refuses everything, and can be assigned to") {
    const TempDir dir;
    const std::vector<Declaration> declared = {{"w", Dtype::f32, {2, 3}}};
    ShardWriter writer(dir / "a.safetensors", declared);
    ShardWriter taken = std::move(writer);
    const std::vector<std::byte> bytes(24);
    const LazyTensor tensor("w", six_floats());
    const ShardWriter::Fill fill = [](std::uint64_t, std::span<std::byte>) {};
    check_bad_calls({
        BAD_CALL(invalid_argument, writer.write("w", bytes)),
        BAD_CALL(invalid_argument, writer.write("w", tensor.load())),
        BAD_CALL(invalid_argument, writer.write("w", tensor)),
        BAD_CALL(invalid_argument, writer.write("w", fill)),
        BAD_CALL(invalid_argument, writer.write_range("w", 0, bytes)),
        BAD_CALL(invalid_argument, writer.write_range("w", 0, tensor.load())),
        BAD_CALL(invalid_argument, writer.write_range("w", 0, tensor)),
        BAD_CALL(invalid_argument, writer.write_range("w", {0, 24}, fill)),
        BAD_CALL(invalid_argument, writer.write_box("w", {{0, 0}, {2, 3}}, bytes)),
        BAD_CALL(invalid_argument, writer.write_box("w", Shape{0, 0}, tensor.load())),
        BAD_CALL(invalid_argument, writer.write_box("w", Shape{0, 0}, tensor)),
        BAD_CALL(invalid_argument, writer.write_box("w", {{0, 0}, {2, 3}}, fill)),
        BAD_CALL(invalid_argument, writer.commit()),
    });
    writer = std::move(taken);
    writer.write("w", tensor);
    CHECK(writer.commit().tensors == 1);
}

TEST_CASE("a number that is no node of a tree is invalid") {
    StateTree tree;
    const StateTree empty;
    check_bad_calls({
        BAD_CALL(invalid_argument, empty[0]),
        BAD_CALL(invalid_argument, tree[StateTree::no_node]),
        BAD_CALL(invalid_argument, tree.subtree(0)),
        BAD_CALL(invalid_argument, tree.put("a", 0)),
    });
    CHECK_FALSE(empty.find("").has_value());
    CHECK_FALSE(empty.find("a/b").has_value());
    CHECK_FALSE(tree.erase("a"));

    tree.set_root(tree.add(StateTree::Dict()));
    tree.put("none", StateTree::no_node);
    check_bad_calls({
        BAD_CALL(invalid_argument, tree[7]),
        BAD_CALL(invalid_argument, tree.subtree(StateTree::no_node)),
        BAD_CALL(invalid_argument, tree.subtree(tree.root())),
        BAD_CALL(invalid_argument, tree.find("none/below")),
        BAD_CALL(invalid_argument, flatten(tree)),
        BAD_CALL(invalid_argument, std::ostringstream() << tree),
    });
    StateTree rootless;
    rootless.set_root(rootless.add(StateTree::Dict()));
    rootless.put("", StateTree::no_node);
    check_bad_calls({
        BAD_CALL(invalid_argument, rootless.put("a", 0)),
        BAD_CALL(invalid_argument, flatten(rootless)),
        BAD_CALL(invalid_argument, std::ostringstream() << rootless),
    });
    StateTree whole;
    whole.set_root(whole.add(StateTree::Dict()));
    const StateTree taken = std::move(whole);
    CHECK(whole.size() == 0);  // NOLINT(bugprone-use-after-move)
    CHECK(taken.size() == 1);
}

TEST_CASE("an empty tree, selection, plan or report is a value like others") {
    CHECK(flatten(StateTree()).tensors.empty());
    CHECK_OK(std::ostringstream() << StateTree());
    CHECK_OK(moved_from(Selection::names({"a"})).matches("b"));
    CHECK_OK(moved_from(Selection::glob("a*").exclude("b")).matches("b"));
    const LoadPlan plan;
    CHECK(plan.ok());
    CHECK(plan.tensors().empty());
    CHECK(plan.text().empty());
    CHECK_OK(plan.require());
    CHECK(DiffReport().equal());
    CHECK(VerifyReport().ok());
    CHECK(Shape().empty());
    CHECK(element_count(Shape()) == 1);
    CHECK(to_string(moved_from(Shape{1, 2})) == "[]");
    CHECK(to_string(TensorView(Dtype::f32, {}, StridedView{{0}, {1}, 0})).size() > 0);
    CHECK(Elements<float>({}, {}, 0).empty());
    CHECK(std::string(moved_from(Error(Errc::busy, "text")).what()).size() <= std::string("text").size());
}

}  // namespace empty_arguments_test
