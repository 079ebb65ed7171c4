// Tests save() of checkpoints made by select(), renamed() and below(): the same bytes as a save by hand, and the same
// checkpoint when opened.
#include <safemap/save.hpp>

#include "checkpoint/origin.hpp"
#include "doctest_safemap.hpp"
#include "state/structure.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/names.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/digest.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

namespace derived_test {

using namespace safemap;
using namespace samples;

namespace {

const fs::path pt = fs::path(SAFEMAP_TEST_DATA) / "pt";

/// Selected names of a checkpoint, and the new name of each.
using Names = std::map<std::string, std::string>;

Names random_names(const Checkpoint& checkpoint, std::mt19937& random) {
    Names names;
    const unsigned keep = 1 + random() % 4;
    for (const NamedTensor& named : all_names(checkpoint))
        if (random() % 4 < keep)
            names.emplace(named.name, std::string(named.name) + (random() % 2 == 0 ? "" : "." + std::to_string(keep)));
    return names;
}

Checkpoint derived_of(const Checkpoint& checkpoint, const Names& names) {
    std::vector<std::string> selected;
    for (const auto& [before, after] : names) selected.push_back(before);
    return checkpoint.select(Selection::names(std::move(selected))).renamed([&](std::string_view name) {
        return names.at(std::string(name));
    });
}

/// Returns a tensor whose dtype safetensors does not have as one of the raw dtype.
LazyTensor as_raw(const LazyTensor& tensor) {
    static const std::map<std::string_view, Dtype> raw{
        {"complex32", Dtype::f16}, {"complex128", Dtype::f64}, {"qint8", Dtype::i8},    {"quint8", Dtype::u8},
        {"qint32", Dtype::i32},    {"quint4x2", Dtype::u8},    {"quint2x4", Dtype::u8}, {"bits8", Dtype::u8},
        {"bits16", Dtype::u16},    {"bits1x8", Dtype::u8},     {"bits2x4", Dtype::u8},  {"bits4x2", Dtype::u8}};
    if (in_safetensors(tensor.dtype())) return tensor;
    const TensorView value = tensor.load();
    Shape shape = tensor.shape();
    if (kind(tensor.dtype()) == DtypeKind::complex) shape.push_back(2);
    const auto bytes = memory_source("by hand", std::vector<std::byte>(value.bytes().begin(), value.bytes().end()));
    return {tensor.name(), stored_run(raw.at(name(tensor.dtype())), std::move(shape), bytes, 0)};
}

/// Does with lists everything that save() does for a checkpoint.
void save_by_hand(const fs::path& out, const Checkpoint& checkpoint, const Names& names, bool document) {
    SaveOptions options;
    std::vector<LazyTensor> tensors;
    std::map<std::string, std::string> stored;  // new name by the name in the checkpoint
    std::map<std::string, std::string> ties;
    std::set<std::pair<std::string, std::string>> old_ties;
    for (const LazyTensor& tensor : checkpoint) {
        std::vector<std::string> left;
        const auto keep = [&](const std::string& name) {
            if (names.contains(name)) left.push_back(names.at(name));
        };
        keep(tensor.name());
        for (const AliasGroup& group : checkpoint.aliases()) {
            if (group.front() != tensor.name()) continue;
            std::for_each(group.begin() + 1, group.end(), keep);
            for (const std::string& other : group) old_ties.emplace(other, tensor.name());
        }
        if (left.empty()) continue;
        tensors.push_back((document ? as_raw(tensor) : tensor).renamed(left.front()));
        if (!in_safetensors(tensors.back().dtype())) continue;
        stored.emplace(tensor.name(), left.front());
        for (std::size_t i = 1; i < left.size(); ++i) ties.emplace(left[i], left.front());
    }
    for (const auto& pair : checkpoint.metadata())
        if (!old_ties.contains(pair)) options.metadata.insert(pair);
    options.metadata.insert(ties.begin(), ties.end());
    if (document) {
        const auto is_new = [&](const LazyTensor& tensor) { return checkpoint.find(tensor.name()) == nullptr; };
        if (std::any_of(tensors.begin(), tensors.end(), is_new)) options.metadata["safemap.root"] = checkpoint.root();
        options.metadata["safemap.structure"] =
            state::structure_of(*checkpoint.tree(), [&](const std::string& name) -> std::optional<std::string> {
                const auto found = stored.find(name);
                return found == stored.end() ? std::nullopt : std::optional(found->second);
            });
        if (const auto source = checkpoint.fingerprint(); source && checkpoint.format() == Format::torch)
            options.metadata["safemap.source"] = *source;
    } else {
        options.metadata.erase("safemap.source");  // plain files do not record their source
    }
    save(out, tensors, options);
}

std::vector<std::string> texts_of(const std::vector<SkippedObject>& skipped) {
    std::vector<std::string> texts;
    for (const SkippedObject& object : skipped) texts.push_back(object.name + ": " + object.type + ", " + object.why);
    return texts;
}

/// Checks that both have the same tensors, in any order.
void check_same(const Checkpoint& a, const Checkpoint& b) {
    CHECK(digests(a).checkpoint == digests(b).checkpoint);  // covers all names, dtypes, shapes and values
    const auto groups = [](const Checkpoint& checkpoint) {
        std::set<std::pair<std::string, std::set<std::string>>> all;
        for (const AliasGroup& group : checkpoint.aliases())
            all.emplace(group.front(), std::set<std::string>(group.begin(), group.end()));
        return all;
    };
    CHECK(groups(a) == groups(b));
}

}  // namespace

TEST_CASE("parts of a checkpoint under new names are saved as by hand, and open with the same content") {
    const TempDir dir;
    std::random_device device;
    const unsigned seed = device();
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (const char* const file : {"train_gpt.pt", "tied.pt", "tied_legacy.pt", "module.pt", "flat.pt", "state_dict.pt",
                                   "strided.pt", "odd_dtypes.pt", "quantized.pt"}) {
        const Checkpoint of_torch = Checkpoint::open(pt / file);
        save_everywhere(dir / "whole.safetensors", of_torch, {.structure = StructurePolicy::keep, .overwrite = true});
        const Checkpoint again = Checkpoint::open(dir / "whole.safetensors");
        for (const Checkpoint& opened : {of_torch, again}) {
            CAPTURE(file);
            const Names names = random_names(opened, random);
            const Checkpoint derived = derived_of(opened, names);
            const auto both = [&](bool document) {
                save_everywhere(
                    dir / "out.safetensors", derived,
                    {.structure = document ? StructurePolicy::keep : StructurePolicy::drop, .overwrite = true});
                fs::remove(dir / "hand.safetensors");
                save_by_hand(dir / "hand.safetensors", opened, names, document);
                CHECK(TempDir::read(dir / "out.safetensors") == TempDir::read(dir / "hand.safetensors"));
                return Checkpoint::open(dir / "out.safetensors");
            };
            static_cast<void>(both(false));
            const Checkpoint written = both(true);
            check_same(written, derived);
            CHECK(structure_of(written) == structure_of(derived));
            // A part of the tree is the same before and after the save.
            for (const std::string& part : derived.parts()) {
                const Checkpoint after = written.below(part);
                const Checkpoint before = derived.below(part);
                check_same(after, before);
                CHECK(texts_of(after.skipped()) == texts_of(before.skipped()));
            }
        }
    }
}

TEST_CASE("a saved selection keeps metadata and ties, in one file and in shards") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("a", Dtype::f32, {4}, 1), tensor("b", Dtype::f32, {4}, 2),
                                             tensor("c", Dtype::f32, {4}, 3)};
    save_everywhere(dir / "in.safetensors", tensors,
                    {.metadata = {{"who", "me"}, {"b2", "b"}, {"b3", "b"}, {"c2", "c"}}});
    const Checkpoint part = Checkpoint::open(dir / "in.safetensors").select(Selection::names({"a", "b2", "b3"}));
    for (const char* const out : {"out.safetensors", "out"}) {
        CAPTURE(out);
        CHECK_OK(save(dir / out, part, {.max_shard_size = 16, .checksums = true}));
        const Checkpoint written = Checkpoint::open(dir / out);
        check_same(written, part);
        CHECK(written.aliases() == std::vector<AliasGroup>{{"b2", "b3"}});
        const auto& metadata = written.metadata();
        CHECK(std::count(metadata.begin(), metadata.end(), std::pair<std::string, std::string>("who", "me")) == 1);
        CHECK(std::none_of(metadata.begin(), metadata.end(), [](const auto& pair) { return pair.first == "c2"; }));
    }
    // The caller's own pairs override those of the checkpoint, including ties.
    CHECK_OK(save(dir / "over.safetensors", part, {.metadata = {{"who", "you"}, {"b3", "none"}}}));
    CHECK(metadata_of(dir / "over.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"who", "you"}, {"b3", "none"}});
}

TEST_CASE("a tied name that collides with a metadata key is refused by save, not dropped") {
    const TempDir dir;
    const Checkpoint whole = Checkpoint::open(pt / "tied.pt");
    REQUIRE_FALSE(whole.aliases().empty());
    const std::string other = whole.aliases().front().at(1);
    for (const std::string key : {"format", "safemap.source", "safemap.x"}) {
        const Checkpoint renamed =
            whole.renamed([&](std::string_view name) { return name == other ? key : std::string(name); });
        CHECK(renamed.find(key) != nullptr);
        CHECK_FAULT(save(dir / "out.safetensors", renamed), Errc::name_collision);
        // A pair of the caller is not a tied name.
        CHECK_OK(save_everywhere(dir / "own.safetensors", whole, {.metadata = {{key, other}}, .overwrite = true}));
    }
    save_everywhere(dir / "in.safetensors", whole);
    const Checkpoint again = Checkpoint::open(dir / "in.safetensors").renamed([&](std::string_view name) {
        return name == other ? "safemap.x" : std::string(name);
    });
    CHECK_FAULT(save(dir / "out.safetensors", again), Errc::name_collision);
}

TEST_CASE("the report counts bytes of storages that are left behind") {
    const TempDir dir;
    const Checkpoint whole = Checkpoint::open(pt / "state_dict.pt");
    std::uint64_t all = 0;
    for (const StoragePlace& storage : checkpoint::Origin::storages(whole)) all += storage.extent.size;
    const auto left = [&](const Checkpoint& checkpoint) {
        const SaveReport plan = save(dir / "x", checkpoint, {.plan_only = true});
        CHECK(plan.reading.unreferenced_bytes == all - plan.bytes_read);
        return plan.reading.unreferenced_bytes;
    };
    CHECK(left(whole) == 0);
    CHECK(left(whole.select(Selection::names({whole.tensor(0).name()}))) > 0);
    CHECK(left(whole.select(Selection::names({}))) == all);
    // For a list of tensors, only their own storages are known.
    const LazyTensor row = whole.tensor(0).slice({{.start = 0, .stop = 1}});
    const SaveReport plan = save(dir / "x", std::vector{row}, {.plan_only = true});
    CHECK(plan.reading.unreferenced_bytes == whole.tensor(0).nbytes() - row.nbytes());
}

TEST_CASE("an edit refuses a name that would hide another") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("a", Dtype::f32, {4}, 1), tensor("b", Dtype::f32, {4}, 2)};
    const fs::path file = dir / "in.safetensors";
    save(file, tensors, {.metadata = {{"who", "me"}, {"b2", "b"}}});
    const std::string before = TempDir::read(file);
    for (const auto& change : {std::pair("a", "b"), {"b2", "a"}, {"a", "b2"}, {"b2", "who"}}) {
        CAPTURE(change.first);
        CHECK_FAULT(edit(file, {.rename = {{change.first, change.second}}}), Errc::name_collision);
        CHECK(TempDir::read(file) == before);
    }
    CHECK_OK(edit(file, {.rename = {{"a", "b"}, {"b", "b2"}, {"b2", "a"}}}));
    const Checkpoint edited = Checkpoint::open(file);
    CHECK(edited.aliases() == std::vector<AliasGroup>{{"b2", "a"}});
}

}  // namespace derived_test
