// Tests SaveOptions::exact_metadata, which writes the given metadata as the reference does and nothing else, and
// Checkpoint::has_metadata(), which distinguishes empty from missing metadata.
#include <safemap/save.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "soak.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/shard_writer.hpp>
#include <safemap/advanced/stored_tensor.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>

namespace exact_metadata_test {

using namespace safemap;
using namespace samples;

namespace {

using Metadata = std::map<std::string, std::string>;

const fs::path data = fs::path(SAFEMAP_TEST_DATA) / "write";
const fs::path training = fs::path(SAFEMAP_TEST_DATA) / "pt/train_gpt.pt";

/// Returns the options that match an argument of the reference's save_file().
SaveOptions exactly(const std::optional<Metadata>& metadata) {
    return {.metadata = metadata.value_or(Metadata()),
            .exact_metadata = true,
            .empty_metadata = metadata.has_value(),
            .overwrite = true};
}

std::vector<LazyTensor> two_tensors() {
    const auto source = memory_source("m", forge::to_bytes(std::string("\0\1\2\3\4\5\6\7\10\11\12\13", 12)));
    return {{"b", stored_run(Dtype::f16, {2}, source, 0)}, {"a", stored_run(Dtype::f32, {1, 2}, source, 4)}};
}

std::size_t notes_with(const SaveReport& report, std::string_view text) {
    return static_cast<std::size_t>(std::count_if(report.notes.begin(), report.notes.end(), [&](const auto& note) {
        return note.find(text) != std::string::npos;
    }));
}

}  // namespace

TEST_CASE("exact metadata is written as by the reference: missing, empty, one pair, many pairs, unicode") {
    struct Row {
        std::optional<Metadata> metadata;
        const char* header;
        std::size_t spaces;
    };
    // Headers of safetensors 0.8.0: safetensors.torch.save(tensors, metadata)
    const Row rows[] = {
        {std::nullopt, "", 2},
        {Metadata(), R"("__metadata__":{},)", 0},
        {Metadata{{"k", ""}}, R"("__metadata__":{"k":""},)", 2},
        {Metadata{{"format", "pt"}}, R"("__metadata__":{"format":"pt"},)", 3},
        {Metadata{{"b", "2"}, {"a", "1"}}, R"("__metadata__":{"a":"1","b":"2"},)", 1},
        {Metadata{{"\xc3\xa9\n\"\\", "\xe2\x80\xa8\xf0\x9f\x98\x80\x7f/\t"}},
         "\"__metadata__\":{\"\xc3\xa9\\n\\\"\\\\\":\"\xe2\x80\xa8\xf0\x9f\x98\x80\x7f/\\t\"},", 0},
    };
    const TempDir dir;
    for (const Row& row : rows) {
        CAPTURE(row.header);
        const std::string header = std::string("{") + row.header +
                                   R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                   R"("b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}})" +
                                   std::string(row.spaces, ' ');
        const std::string expected = forge::safetensors(header, std::string("\4\5\6\7\10\11\12\13\0\1\2\3", 12));
        const SaveOptions options = exactly(row.metadata);
        CHECK(save_everywhere(dir / "f.safetensors", two_tensors(), options).notes.empty());
        CHECK(TempDir::read(dir / "f.safetensors") == expected);
        save(dir / "folder", two_tensors(), options);
        CHECK(TempDir::read(dir / "folder/model.safetensors") == expected);

        const Checkpoint model = Checkpoint::open(dir / "f.safetensors");
        CHECK(model.has_metadata() == row.metadata.has_value());
        CHECK(Metadata(model.metadata().begin(), model.metadata().end()) == options.metadata);
        save_everywhere(dir / "again.safetensors", model, options);
        CHECK(TempDir::read(dir / "again.safetensors") == expected);

        std::vector<Declaration> declarations;
        for (const LazyTensor& t : model) declarations.push_back({t.name(), t.dtype(), t.shape()});
        ShardWriter writer(dir / "written.safetensors", declarations, options);
        for (const LazyTensor& t : model) writer.write(t.name(), t);
        writer.commit();
        CHECK(TempDir::read(dir / "written.safetensors") == expected);

        repair(dir / "f.safetensors", dir / "mended.safetensors", options);
        CHECK(TempDir::read(dir / "mended.safetensors") == expected);
    }
}

TEST_CASE("any metadata is read back unchanged, without additions") {
    const unsigned seed = soak::seed(15);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const TempDir dir;
    const std::string_view pieces[] = {"a", "b", "\"",       "\\",     "\n", "\x01", "\xc3\xa9", "\xf0\x9f\x98\x80",
                                       " ", "0", "safemap.", "format", "/"};
    const auto text = [&](std::size_t most) {
        std::string out;
        for (std::size_t i = random() % (most + 1); i > 0; --i) out += pieces[random() % std::size(pieces)];
        return out;
    };
    for (int round = 0; round < soak::rounds(200); ++round) {
        Metadata metadata;
        for (auto i = random() % 6; i > 0; --i) metadata[text(4)] = text(8);
        const bool empty = random() % 2 == 0;
        SaveOptions options = exactly(metadata);
        options.empty_metadata = empty;
        save_everywhere(dir / "f.safetensors", two_tensors(), options);
        CHECK(metadata_of(dir / "f.safetensors") == metadata);
        const std::string file = TempDir::read(dir / "f.safetensors");
        CHECK((file.find("__metadata__") != std::string::npos) == (empty || !metadata.empty()));
    }
}

TEST_CASE("empty metadata is distinguished from missing metadata, and null counts as missing") {
    const TempDir dir;
    const std::string rest = R"("w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
    const auto file = [&](const char* name, const std::string& metadata) {
        return dir.write(name, forge::safetensors('{' + metadata + rest, "ab"));
    };
    const auto none = Checkpoint::open(file("none.safetensors", ""));
    const auto null = Checkpoint::open(file("null.safetensors", R"("__metadata__":null,)"));
    const auto empty = Checkpoint::open(file("empty.safetensors", R"("__metadata__":{},)"));
    const auto full = Checkpoint::open(file("full.safetensors", R"("__metadata__":{"a":"b"},)"));
    CHECK_FALSE(none.has_metadata());
    CHECK_FALSE(null.has_metadata());
    CHECK(empty.has_metadata());
    CHECK(empty.metadata().empty());
    CHECK(full.has_metadata());
    const auto other = [](std::string_view name) { return std::string(name) + '2'; };
    for (const Checkpoint* model : {&none, &empty}) {
        CHECK(model->select(Selection::names({"w"})).has_metadata() == model->has_metadata());
        CHECK(model->renamed(other).has_metadata() == model->has_metadata());
    }
    CHECK_FALSE(Checkpoint::open(training).has_metadata());

    // For several files, metadata in one of them is enough; an index has strings of its own.
    save_everywhere(dir / "b.safetensors", std::vector{tensor("b", Dtype::u8, {3})}, exactly(std::nullopt));
    const auto open_both = [&](const char* name) {
        const fs::path both[] = {dir / name, dir / "b.safetensors"};
        return Checkpoint::open(both).has_metadata();
    };
    CHECK_FALSE(open_both("none.safetensors"));
    CHECK(open_both("empty.safetensors"));
    CHECK(open_both("full.safetensors"));
}

TEST_CASE("shards have no metadata, and the index has the given pairs beside its totals") {
    const TempDir dir;
    const Metadata given = {{"format", "mlx"}, {"total_size", "mine"}, {"who", "me"}};
    SaveOptions options = exactly(given);
    options.max_shard_size = 8;
    options.empty_metadata = false;
    const SaveReport report = save(dir / "out", two_tensors(), options);
    REQUIRE(report.files.size() == 3);
    const std::string index = TempDir::read(dir / "out" / report.files.back());
    CHECK(index.find(R"(  "metadata": {
    "total_size": 12,
    "format": "mlx",
    "who": "me"
  })") != std::string::npos);
    const auto shard_has_metadata = [&](std::size_t i) {
        return Checkpoint::open(dir / "out" / report.files[i]).has_metadata();
    };
    CHECK_FALSE(shard_has_metadata(0));
    CHECK_FALSE(shard_has_metadata(1));
    CHECK(Checkpoint::open(dir / "out").has_metadata());

    options.metadata.clear();
    save(dir / "out", two_tensors(), options);
    CHECK_FALSE(Checkpoint::open(dir / "out").has_metadata());
    options.empty_metadata = true;
    save(dir / "out", two_tensors(), options);
    CHECK(shard_has_metadata(0));
    CHECK(Checkpoint::open(dir / "out").has_metadata());
}

TEST_CASE("other parts of a checkpoint than tensors are left out, and notes list the losses") {
    const TempDir dir;
    const fs::path out = dir / "out.safetensors";
    const Checkpoint hub = Checkpoint::open(data / "shards");
    REQUIRE(hub.aliases() == std::vector<AliasGroup>{{"wte.weight", "zz.tied"}});
    SaveReport report = save(out, hub, exactly(std::nullopt));
    CHECK(notes_with(report, "the exact metadata lacks another name of a tied tensor: 'zz.tied' of 'wte.weight'") == 1);
    const Checkpoint plain = Checkpoint::open(out);
    CHECK_FALSE(plain.has_metadata());
    CHECK(plain.find("zz.tied") == nullptr);
    CHECK(plain.size() == hub.size());

    report = save(out, hub, exactly(Metadata{{"zz.tied", "wte.weight"}}));
    CHECK(notes_with(report, "tied") == 0);
    const Checkpoint tied = Checkpoint::open(out);
    CHECK(tied.aliases() == hub.aliases());
    // A pair with that key and another value is not a tie.
    report = save(out, hub, exactly(Metadata{{"zz.tied", "other"}}));
    CHECK(notes_with(report, "zz.tied") == 1);

    const Checkpoint tree = Checkpoint::open(training);
    report = save(out, tree, exactly(Metadata()));
    const SaveReport dropped = save_everywhere(dir / "dropped.safetensors", tree, {.structure = StructurePolicy::drop});
    for (const std::string& note : dropped.notes) CHECK(notes_with(report, note) == 1);
    CHECK_FALSE(dropped.notes.empty());
    const Checkpoint exact = Checkpoint::open(out);
    CHECK(exact.tree() == nullptr);
    CHECK(metadata_of(out).empty());
}

TEST_CASE("options that would add to exact metadata are refused before a byte is written") {
    const TempDir dir;
    for (const bool plan_only : {false, true}) {
        SaveOptions digests = exactly(Metadata());
        digests.checksums = true;
        digests.plan_only = plan_only;
        CHECK_FAULT(save(dir / "f.safetensors", two_tensors(), digests), Errc::invalid_argument);
        CHECK(no_sink_takes(two_tensors(), digests, Errc::invalid_argument));
        SaveOptions document = exactly(Metadata());
        document.structure = StructurePolicy::keep;
        document.plan_only = plan_only;
        CHECK_FAULT(save(dir / "f.safetensors", Checkpoint::open(training), document), Errc::invalid_argument);
        CHECK(no_sink_takes(Checkpoint::open(training), document, Errc::invalid_argument));
        SaveOptions broken = exactly(Metadata{{"a", "\xff"}});
        broken.plan_only = plan_only;
        CHECK_FAULT(save(dir / "f.safetensors", two_tensors(), broken), Errc::invalid_argument);
        CHECK(no_sink_takes(two_tensors(), broken, Errc::invalid_argument));
    }
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("given digests are kept, and so is a pair whose tensor is skipped") {
    const TempDir dir;
    const Metadata given = {{"safemap.xxh3_128", "old"}, {"u", "t"}};
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {2}), tensor("t", Dtype::c128, {2})};
    const SaveReport report = save_everywhere(dir / "f.safetensors", tensors, exactly(given));
    CHECK(report.skipped.size() == 1);
    CHECK(metadata_of(dir / "f.safetensors") == given);
}

}  // namespace exact_metadata_test
