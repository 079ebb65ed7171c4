// Tests nested state dicts in safetensors: where their structure document is stored, when it is written, and that it
// stays correct. From top to bottom: one file and shards, when it is written, invalid documents, notes about lost
// order, large documents, trees that are too deep, damage, parts of a state.
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/save.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "inspect.hpp"
#include "state/structure.hpp"
#include "write/add_structure.hpp"
#include "write/everywhere.hpp"
#include "write/file_layout.hpp"
#include "write/plan_keys.hpp"
#include "write/samples.hpp"

#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include <algorithm>

namespace structure_test {

using namespace safemap;
using namespace samples;

namespace {

const fs::path training = fs::path(SAFEMAP_TEST_DATA) / "pt/train_gpt.pt";
const fs::path flat = fs::path(SAFEMAP_TEST_DATA) / "pt/state_dict.pt";

/// Returns the document for the tree of a checkpoint, with the names of that checkpoint.
std::string document_of(const Checkpoint& checkpoint) {
    REQUIRE(checkpoint.tree() != nullptr);
    return state::structure_of(*checkpoint.tree(), [&](const std::string& name) -> std::optional<std::string> {
        const LazyTensor* const tensor = checkpoint.find(name);
        if (tensor == nullptr || !in_safetensors(tensor->dtype())) return std::nullopt;
        return name;
    });
}

/// Writes a checkpoint with a large document: tensors, and a text of `size` bytes.
fs::path with_text(const TempDir& dir, std::size_t size) {
    const std::string text(size, 'x');
    const std::string quoted =
        "\"{\\\"v\\\":1,\\\"root\\\":{\\\"w\\\":[\\\"T\\\"],\\\"log\\\":\\\"" + text + "\\\"}}\"";
    const std::string header = R"({"__metadata__":{"safemap.structure":)" + quoted +
                               R"(},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    return dir.write("large.safetensors", forge::safetensors(header, "ab"));
}

bool has_tree(const fs::path& path) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    return checkpoint.tree() != nullptr;
}

std::vector<std::string> lost(const fs::path& path) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    return lost_without_structure(checkpoint);
}

constexpr auto is_of_order = [](const std::string& note) { return note.starts_with("the order of the tensors"); };

std::vector<std::string> without_order(std::vector<std::string> notes) {
    std::erase_if(notes, is_of_order);
    return notes;
}

}  // namespace

TEST_CASE("a nested state dict keeps its structure, in one file and in shards, after repeated saves") {
    const TempDir dir;
    const Checkpoint source = Checkpoint::open(training);
    const std::string wanted = document_of(source);
    CHECK(wanted.find("param_groups") != std::string::npos);
    SaveReport report;
    CHECK_OK(report = save_everywhere(dir / "one.safetensors", source));
    CHECK(report.notes.empty());
    CHECK_OK(save(dir / "shards", source, {.max_shard_size = 100'000, .checksums = true}));
    CHECK(verify(dir / "shards").ok());
    const Checkpoint one = Checkpoint::open(dir / "one.safetensors");
    CHECK(document_of(one) == wanted);
    for (const auto& [key, value] : one.metadata()) CHECK(key != "safemap.structure");  // it is the tree now
    CHECK(document_of(Checkpoint::open(dir / "shards")) == wanted);
    CHECK_OK(save_everywhere(dir / "again.safetensors", Checkpoint::open(dir / "shards")));
    CHECK(TempDir::read(dir / "again.safetensors") == TempDir::read(dir / "one.safetensors"));
    CHECK(digests(one).checkpoint == digests(source).checkpoint);
}

TEST_CASE("the structure policy decides when the document is written") {
    const TempDir dir;
    const auto notes_of = [&](const fs::path& from, StructurePolicy policy) {
        return save_everywhere(dir / "out.safetensors", Checkpoint::open(from),
                               {.structure = policy, .overwrite = true})
            .notes;
    };
    CHECK(without_order(notes_of(training, StructurePolicy::drop)) == lost(training));
    CHECK_FALSE(has_tree(dir / "out.safetensors"));
    CHECK_FALSE(lost(training).empty());
    CHECK(notes_of(training, StructurePolicy::keep).empty());
    CHECK(has_tree(dir / "out.safetensors"));
    const auto plain = notes_of(flat, StructurePolicy::automatic);
    CHECK(without_order(plain) == lost(flat));
    CHECK_FALSE(has_tree(dir / "out.safetensors"));
    CHECK(notes_of(flat, StructurePolicy::keep).empty());
    CHECK(has_tree(dir / "out.safetensors"));
    // Losses are also noted when the document of a safetensors file is dropped.
    save_everywhere(dir / "kept.safetensors", Checkpoint::open(training));
    CHECK(without_order(notes_of(dir / "kept.safetensors", StructurePolicy::drop)) == lost(training));
    notes_of(flat, StructurePolicy::keep);
    CHECK(document_of(Checkpoint::open(dir / "out.safetensors")) == document_of(Checkpoint::open(flat)));
    // For safetensors without a document, it is a dictionary of all names.
    save_everywhere(dir / "plain.safetensors", std::vector<LazyTensor>{tensor("a/b", Dtype::f32, {3}, 1)});
    notes_of(dir / "plain.safetensors", StructurePolicy::keep);
    CHECK(document_of(Checkpoint::open(dir / "out.safetensors")) == R"({"v":1,"root":{"a/b":["T",{"n":"a/b"}]}})");
}

TEST_CASE("a file whose document another program made invalid can be opened with the lenient policy") {
    const TempDir dir;
    const std::string header =
        R"({"__metadata__":{"safemap.structure":"{\"v\":1,\"root\":{\"w\":[\"T\"],\"gone\":[\"T\"]}}"},)"
        R"("w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    const fs::path file = dir.write("edited.safetensors", forge::safetensors(header, "ab"));
    try {
        static_cast<void>(Checkpoint::open(file));
        FAIL("opened");
    } catch (const Error& error) {
        CHECK(error.code() == Errc::bad_structure);
        CHECK(error.hint().find("lenient") != std::string::npos);
    }
    CHECK_FALSE(verify(file).ok());
    const Checkpoint lenient = Checkpoint::open(file, {.policy = Policy::lenient});
    CHECK(lenient.tree() == nullptr);
    CHECK(only_of(lenient.notes()).find("gone") != std::string::npos);
    CHECK_OK(save_everywhere(dir / "out.safetensors", lenient));
    CHECK(names_of(Checkpoint::open(dir / "out.safetensors")) == std::vector<std::string>{"w"});
}

TEST_CASE("a tied name that collides with a metadata key is refused, not dropped") {
    const TempDir dir;
    for (const std::string name : {"format", "safemap.structure", "safemap.source"}) {
        CAPTURE(name);
        const std::string header = R"({"__metadata__":{"safemap.structure":"{\"v\":1,\"root\":{\"w\":[\"T\"],\")" +
                                   name +
                                   R"(\":[\"@\",\"w\"]}}"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
        const fs::path file = dir.write("tied.safetensors", forge::safetensors(header, "ab"));
        const Checkpoint part = Checkpoint::open(file).below("");
        REQUIRE(part.aliases().size() == 1);
        CHECK_FAULT(save(dir / "out.safetensors", part, {.structure = StructurePolicy::drop}), Errc::name_collision);
    }
}

TEST_CASE("a lost order is noted where it has a meaning: not in a flat state dict, whose names are enough") {
    const TempDir dir;
    bool nested = true;
    const auto is_told = [&](std::vector<LazyTensor> tensors, SaveOptions options, const char* out) {
        const fs::path ordered = dir / "ordered.safetensors";
        save(ordered, tensors, {.overwrite = true});
        const Checkpoint plain = Checkpoint::open(ordered);
        // Files without a document have no order to lose.
        CHECK(save_everywhere(dir / "copy.safetensors", plain, {.overwrite = true}).notes.empty());
        StateTree::Dict dict;
        StateTree tree;
        for (const LazyTensor& each : tensors) {
            const auto key = tree.add(each.name());
            dict.items.emplace_back(key, tree.add(StateTree::Tensor{.tensor = each}));
        }
        const auto model = tree.add(std::move(dict));
        tree.set_root(nested ? tree.add(StateTree::Dict{.items = {{tree.add("model"), model}}}) : model);
        SaveOptions with_document{.overwrite = true};
        with_document.metadata[std::string(state::structure_key)] =
            state::structure_of(tree, [](const std::string& name) { return name; });
        save(ordered, tensors, with_document);
        options.overwrite = true;
        if (options.structure == StructurePolicy::automatic) options.structure = StructurePolicy::drop;
        const auto notes = save(dir / out, Checkpoint::open(ordered), options).notes;
        return std::any_of(notes.begin(), notes.end(), is_of_order);
    };
    const auto f32 = [](const char* name, unsigned seed) { return tensor(name, Dtype::f32, {3}, seed); };
    const char* const one = "out.safetensors";
    CHECK(is_told({f32("b", 1), f32("a", 2)}, {}, one));
    CHECK_FALSE(is_told({f32("b", 1), f32("a", 2)}, {.structure = StructurePolicy::keep}, one));
    CHECK_FALSE(is_told({f32("a", 1), f32("b", 2)}, {}, one));
    CHECK(is_told({tensor("a", Dtype::u8, {3}, 1), f32("b", 2)}, {}, one));  // dtype is sorted first
    // Each rank has a part of both, in their order.
    CHECK_FALSE(is_told({f32("a", 1), f32("b", 2)}, {.ranks = 2}, "ranks"));
    CHECK(is_told({f32("b", 1), f32("a", 2)}, {.ranks = 2}, "ranks"));
    nested = false;
    CHECK_FALSE(is_told({f32("b", 1), f32("a", 2)}, {}, one));
    CHECK_FALSE(std::ranges::any_of(save(dir / "pt", Checkpoint::open(flat)).notes, is_of_order));
}

TEST_CASE("a large document is stored as a hidden tensor") {
    const TempDir dir;
    for (const bool apart : {false, true}) {
        CAPTURE(apart);
        const Checkpoint source =
            Checkpoint::open(with_text(dir, state::longest_inline_structure - 100 + (apart ? 200 : 0)));
        const fs::path out = dir / "out.safetensors";
        SaveReport report;
        CHECK_OK(report = save(out, source, {.checksums = true, .overwrite = true}));
        CHECK(report.tensors == (apart ? 2 : 1));
        CHECK(TempDir::read(out).substr(0, 1'000).find("~structure") ==
              (apart ? TempDir::read(out).find("~structure") : std::string::npos));
        const Checkpoint again = Checkpoint::open(out);
        CHECK(names_of(again) == std::vector<std::string>{"w"});
        CHECK(document_of(again) == document_of(source));
        CHECK(digests(again).checkpoint == digests(source).checkpoint);
        CHECK(verify(out).ok());
        // An edit keeps the document correct.
        CHECK_OK(edit(out, {.rename = {{"w", "kernel"}}}));
        CHECK(document_of(Checkpoint::open(out)).find(R"({"w":["T",{"n":"kernel"}])") != std::string::npos);
        CHECK(verify(out).ok());
        CHECK_FAULT(edit(out, {.unset = {"safemap.structure"}}), Errc::invalid_argument);
        if (!apart) continue;
        std::string bytes = TempDir::read(out);
        bytes[bytes.rfind("xxx")] = 'y';
        dir.write("damaged.safetensors", bytes);
        CHECK_FAULT(Checkpoint::open(dir / "damaged.safetensors"), Errc::checksum_mismatch);
        CHECK_FALSE(verify(dir / "damaged.safetensors").ok());
    }
}

TEST_CASE("a save with a large document can be resumed") {
    const TempDir dir;
    const auto job = [&](std::size_t size) {
        const Checkpoint source = Checkpoint::open(with_text(dir, size));
        write::Input input{.tensors = {}};
        const auto document = write::add_structure(source, {}, input);
        REQUIRE(document);
        const std::vector<LazyTensor> tensors{source.tensor(0), *document};
        input.tensors = tensors;
        return write::resume_key_of(tensors, write::lay_out(input, {}, std::nullopt));
    };
    const std::string first = job(state::longest_inline_structure);
    CHECK_FALSE(first.empty());
    CHECK(job(state::longest_inline_structure + 1) != first);
}

TEST_CASE("a tensor with the name of the document's tensor stays a tensor") {
    const TempDir dir;
    const std::string text(state::longest_inline_structure + 1, 'x');
    const std::string header =
        R"({"__metadata__":{"safemap.structure":"{\"v\":1,\"root\":[\"l\",[\"T\",{\"n\":\"~structure\"}],\")" + text +
        R"(\"]}"},"~structure":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    const Checkpoint source = Checkpoint::open(dir.write("in.safetensors", forge::safetensors(header, "ab")));
    CHECK(source.size() == 1);
    CHECK_OK(save_everywhere(dir / "out.safetensors", source, {.checksums = true}));
    const Checkpoint again = Checkpoint::open(dir / "out.safetensors");
    CHECK(names_of(again) == std::vector<std::string>{"~structure"});
    CHECK(document_of(again) == document_of(source));
    CHECK(verify(dir / "out.safetensors").ok());
}

TEST_CASE("a tree that is too deep for a document is saved without one, with a note") {
    const TempDir dir;
    const Checkpoint deep = Checkpoint::open(fs::path(SAFEMAP_TEST_DATA) / "pt/broken/nested_lists.pt");
    SaveReport report;
    CHECK_OK(report = save_everywhere(dir / "out.safetensors", deep));
    REQUIRE_FALSE(report.notes.empty());
    CHECK(report.notes.front().find("no structure document is written") == 0);
    CHECK_FAULT(save(dir / "keep.safetensors", deep, {.structure = StructurePolicy::keep}), Errc::structure_too_large);
    CHECK(no_sink_takes(deep, {.structure = StructurePolicy::keep}, Errc::structure_too_large));
    CHECK_FALSE(fs::exists(dir / "keep.safetensors"));
}

TEST_CASE("a damaged document is reported with the file") {
    const TempDir dir;
    const auto open = [&](const std::string& says, const std::string& tensor = "w") {
        const std::string header = R"({"__metadata__":{"safemap.structure":)" + says + R"(},")" + tensor +
                                   R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
        return has_tree(dir.write("f.safetensors", forge::safetensors(header, "abcd")));
    };
    CHECK(open(R"("{\"v\":1,\"root\":[\"T\",{\"n\":\"w\"}]}")"));
    const std::string apart = R"("{\"v\":1,\"tensor\":\"~structure\",\"xxh3_128\":\"00\"}")";
    for (const auto& row : std::vector<std::pair<std::string, std::string>>{
             {R"("{\"v\":1,\"root\":[\"T\"]}")", "w"}, {R"("")", "w"}, {apart, "w"}, {apart, "~structure"}}) {
        CAPTURE(row.first);
        check_error(error_of([&] { return open(row.first, row.second); }), {Errc::bad_structure}, {},
                    {.path = (dir / "f.safetensors").native()});
        CHECK_FALSE(verify(dir / "f.safetensors").ok());
    }
}

TEST_CASE("a part of a training state is converted alone, with paths that begin there") {
    const TempDir dir;
    const Checkpoint whole = Checkpoint::open(training);
    CHECK(whole.parts() == std::vector<std::string>{"model", "optimizer", "rng_state"});
    const Checkpoint model = whole.below("model");
    CHECK(model.find("tokens.weight") != nullptr);
    CHECK(model.find("model/tokens.weight") == nullptr);
    CHECK(model.parts().empty());
    CHECK(model.aliases() == std::vector<AliasGroup>{{"tokens.weight", "head.weight"}});
    CHECK_OK(save_everywhere(dir / "model.safetensors", model));
    CHECK_FALSE(has_tree(dir / "model.safetensors"));
    // The same for safetensors that have a document.
    save_everywhere(dir / "whole.safetensors", whole);
    CHECK_OK(save_everywhere(dir / "again.safetensors", Checkpoint::open(dir / "whole.safetensors").below("model")));
    CHECK(TempDir::read(dir / "again.safetensors") == TempDir::read(dir / "model.safetensors"));
    const Checkpoint optimizer = whole.below("optimizer");
    CHECK(optimizer.tree()->find("param_groups/0/lr"));
    const auto error = error_of([&] { return whole.below("models"); });
    check_error(error, {Errc::invalid_argument}, {});
    CHECK(error->hint().find("'model', 'optimizer'") != std::string::npos);
    CHECK_FAULT(Checkpoint::open(flat).below("x"), Errc::invalid_argument);
}

}  // namespace structure_test
