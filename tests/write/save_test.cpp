// Tests of save.hpp: the written bytes. From top to bottom: one file, shards and index, metadata and alignment, names
// and targets, plans, casts and dtypes, random tensors, large and small tensors, progress and cancelling, sizes.
#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "inspect.hpp"
#include "io/scripted_calls.hpp"
#include "soak.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <array>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>

namespace save_test {

using namespace safemap;
using namespace samples;
using namespace safemap::literals;

namespace {

using Names = std::vector<std::string>;

std::vector<LazyTensor> some_tensors() {
    return {tensor("wte", Dtype::f32, {100, 3}, 1), tensor("b", Dtype::bf16, {7}, 2),
            tensor("ids", Dtype::i64, {2, 2}, 3),   tensor("mask", Dtype::boolean, {5}, 4),
            tensor("empty", Dtype::f32, {0, 4}, 5), tensor("scalar", Dtype::f64, {}, 6)};
}

}  // namespace

TEST_CASE("one file is what the reference writes") {
    const TempDir dir;
    auto bytes = random_bytes(16, 9);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    const auto source = memory_source("m", bytes);
    const std::vector<LazyTensor> tensors = {{"b", stored_run(Dtype::f16, {2}, source, 0)},
                                             {"a", stored_run(Dtype::f32, {1, 2}, source, 4)},
                                             {"c", stored_run(Dtype::f16, {1}, source, 12)}};
    const SaveReport report = save_everywhere(dir / "out.safetensors", tensors);
    // safetensors 0.8: serialize_file(..., metadata={"format": "pt"})
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
        R"("b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
        R"("c":{"dtype":"F16","shape":[1],"data_offsets":[12,14]}})";
    std::string expected(8, '\0');
    const std::uint64_t length = (header.size() + 7) / 8 * 8;
    std::memcpy(expected.data(), &length, 8);
    expected += header + std::string(length - header.size(), ' ');
    expected += std::string("\4\5\6\7\10\11\12\13\0\1\2\3\14\15", 14);
    CHECK(TempDir::read(dir / "out.safetensors") == expected);
    CHECK(report.files == Names{"out.safetensors"});
    CHECK(report.tensors == 3);
    CHECK(report.bytes_read == 14);
    CHECK(report.bytes_written == expected.size());
    CHECK(names_in(dir.path()) == Names{"out.safetensors"});
}

TEST_CASE("every tensor is read back unchanged") {
    const TempDir dir;
    const auto tensors = some_tensors();
    save_everywhere(dir / "out.safetensors", tensors);
    const auto stored = read_file(dir / "out.safetensors");
    REQUIRE(stored.size() == tensors.size());
    for (const LazyTensor& t : tensors) {
        CAPTURE(t.name());
        const Stored& found = stored.at(t.name());
        CHECK(found.dtype == t.dtype());
        CHECK(found.shape == t.shape());
        std::vector<std::byte> value(static_cast<std::size_t>(t.nbytes()));
        t.read(0, value);
        CHECK(found.bytes == value);
    }
}

TEST_CASE("a folder with one shard has no index, and one with several shards has one") {
    const TempDir dir;
    const auto tensors = some_tensors();
    CHECK(save(dir / "one", tensors).files == Names{"model.safetensors"});
    CHECK(names_in(dir / "one") == Names{"model.safetensors"});
    save_everywhere(dir / "file.safetensors", tensors);
    CHECK(TempDir::read(dir / "one/model.safetensors") == TempDir::read(dir / "file.safetensors"));

    // 1200 (too large: a shard before the open one) · 14 + 32 · 5 + 0 + 8
    const SaveReport report = save(dir / "many", tensors, {.max_shard_size = 46, .metadata = {{"who", "me"}}});
    CHECK(report.files == Names{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
    CHECK(names_in(dir / "many") == report.files);
    CHECK(TempDir::read(dir / "many/model.safetensors.index.json") == R"({
  "metadata": {
    "total_size": 1259,
    "who": "me"
  },
  "weight_map": {
    "wte": "model-00001-of-00003.safetensors",
    "b": "model-00002-of-00003.safetensors",
    "ids": "model-00002-of-00003.safetensors",
    "mask": "model-00003-of-00003.safetensors",
    "empty": "model-00003-of-00003.safetensors",
    "scalar": "model-00003-of-00003.safetensors"
  }
})");
    std::uint64_t written = 0;
    for (const auto& name : report.files) written += fs::file_size(dir / "many" / name);
    CHECK(report.bytes_written == written);
    for (const auto* shard : {"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"})
        CHECK(metadata_of(dir / "many" / shard) == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("metadata goes into the single file, and the format is added if it is missing") {
    const TempDir dir;
    const auto tensors = some_tensors();
    save(dir / "a", tensors, {.metadata = {{"step", "7"}}});
    CHECK(metadata_of(dir / "a/model.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"step", "7"}});
    save_everywhere(dir / "b.safetensors", tensors, {.metadata = {{"format", "mlx"}}});
    CHECK(metadata_of(dir / "b.safetensors") == std::map<std::string, std::string>{{"format", "mlx"}});
}

TEST_CASE("a checkpoint without tensors is saved as a file without tensors") {
    const TempDir dir;
    const std::vector<LazyTensor> none;
    CHECK(save(dir / "out", none).files == Names{"model.safetensors"});
    CHECK(read_file(dir / "out/model.safetensors").empty());
    CHECK(save_everywhere(dir / "out.safetensors", none).tensors == 0);
    CHECK(read_file(dir / "out.safetensors").empty());
}

TEST_CASE("the data begins at the requested alignment") {
    const TempDir dir;
    const auto tensors = some_tensors();
    for (const std::uint32_t alignment : {8U, 64U, 256U, 4096U}) {
        const fs::path path = dir / ("out" + std::to_string(alignment) + ".safetensors");
        save(path, tensors, {.alignment = alignment});
        ThrowFirst faults;
        const auto header =
            safetensors::read_header(*open_file(path), safetensors::Rules::compatible, 100'000'000, faults);
        CHECK(header.data_offset % alignment == 0);
        CHECK(header.tensors.size() == tensors.size());
    }
    CHECK_FAULT(save(dir / "out", tensors, {.alignment = 16}), Errc::invalid_argument);
    CHECK_FAULT(save(dir / "out", tensors, {.alignment = 0}), Errc::invalid_argument);
}

TEST_CASE("on request, as many tensors as the order allows are aligned") {
    const TempDir dir;
    // 130 bytes, 64, 128, 0, 65, 192: multiples of 64 come first.
    const std::vector<LazyTensor> tensors = {tensor("odd", Dtype::f16, {65}, 1), tensor("b", Dtype::u8, {64}, 2),
                                             tensor("a", Dtype::f32, {32}, 3),   tensor("none", Dtype::f64, {0}, 4),
                                             tensor("bits", Dtype::u8, {65}, 5), tensor("c", Dtype::f32, {48}, 6)};
    const SaveReport plain = save_everywhere(dir / "plain.safetensors", tensors, {.alignment = 64});
    const SaveReport aligned =
        save_everywhere(dir / "aligned.safetensors", tensors, {.alignment = 64, .align_tensors = true});
    const auto offsets_in = [](const fs::path& path) {
        ThrowFirst faults;
        const auto header = safetensors::read_header(*open_file(path), safetensors::Rules::strict, 1'000'000, faults);
        CHECK(header.data_offset % 64 == 0);
        std::map<std::string, std::uint64_t> offsets;
        for (const auto& info : header.tensors) offsets.emplace(info.name, info.data.offset - header.data_offset);
        return offsets;
    };
    using Offsets = std::map<std::string, std::uint64_t>;
    CHECK(offsets_in(dir / "plain.safetensors") ==
          Offsets{{"none", 0}, {"a", 0}, {"c", 128}, {"odd", 320}, {"b", 450}, {"bits", 514}});
    CHECK(plain.layout.unaligned_tensors == 2);
    CHECK(offsets_in(dir / "aligned.safetensors") ==
          Offsets{{"none", 0}, {"a", 0}, {"c", 128}, {"b", 320}, {"odd", 384}, {"bits", 514}});
    CHECK(aligned.layout.unaligned_tensors == 1);
    const auto stored = read_file(dir / "aligned.safetensors");
    for (const LazyTensor& t : tensors) {
        std::vector<std::byte> value(static_cast<std::size_t>(t.nbytes()));
        t.read(0, value);
        CHECK(stored.at(t.name()).bytes == value);
    }
}

TEST_CASE("the report has the tensors and the bytes of every file") {
    const TempDir dir;
    const SaveReport report = save(dir / "out", some_tensors(), {.max_shard_size = 46});
    REQUIRE(report.layout.files.size() == report.files.size());
    for (std::size_t i = 0; i < report.files.size(); ++i) {
        const fs::path path = dir / "out" / report.files[i];
        CHECK(report.layout.files[i].bytes == fs::file_size(path));
        CHECK(report.layout.files[i].tensors == (path.extension() == ".json" ? 0 : read_file(path).size()));
    }
}

TEST_CASE("a transformers index is sorted and has the number of parameters") {
    const TempDir dir;
    save(dir / "out", some_tensors(),
         {.max_shard_size = 46,
          .metadata = {{"who", "me"}, {"format", "mlx"}, {"total_parameters", "9"}, {"total_size", "9"}},
          .index_style = IndexStyle::transformers});
    CHECK(TempDir::read(dir / "out/model.safetensors.index.json") == R"({
  "metadata": {
    "total_parameters": 317,
    "total_size": 1259,
    "who": "me"
  },
  "weight_map": {
    "b": "model-00002-of-00003.safetensors",
    "empty": "model-00003-of-00003.safetensors",
    "ids": "model-00002-of-00003.safetensors",
    "mask": "model-00003-of-00003.safetensors",
    "scalar": "model-00003-of-00003.safetensors",
    "wte": "model-00001-of-00003.safetensors"
  }
}
)");
    for (const auto* shard : {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"})
        CHECK(metadata_of(dir / "out" / shard) == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("shards are balanced, or keep layers whole, on request") {
    const TempDir dir;
    std::vector<LazyTensor> tensors;
    for (const char* name : {"wte", "h.0.a", "h.1.a", "h.0.b", "h.1.b", "head"})
        tensors.push_back(tensor(name, Dtype::u8, {6}));
    const auto names_by_file = [&](const SaveReport& report) {
        std::vector<Names> names;
        for (const auto& file : report.files)
            if (file.ends_with(".safetensors")) {
                names.emplace_back();
                for (const auto& [name, stored] : read_file(dir / "out" / file)) names.back().push_back(name);
            }
        fs::remove_all(dir / "out");
        return names;
    };
    const auto saved = [&](std::uint64_t max, ShardStrategy strategy) {
        return save(dir / "out", tensors, {.max_shard_size = max, .strategy = strategy});
    };
    CHECK(names_by_file(saved(24, ShardStrategy::greedy)) ==
          std::vector<Names>{{"h.0.a", "h.0.b", "h.1.a", "wte"}, {"h.1.b", "head"}});
    CHECK(names_by_file(saved(24, ShardStrategy::balanced)) ==
          std::vector<Names>{{"h.0.a", "h.1.a", "wte"}, {"h.0.b", "h.1.b", "head"}});
    const SaveReport whole = saved(12, ShardStrategy::by_prefix);
    CHECK(whole.notes.empty());
    CHECK(names_by_file(whole) == std::vector<Names>{{"wte"}, {"h.0.a", "h.0.b"}, {"h.1.a", "h.1.b"}, {"head"}});
    const SaveReport large = saved(11, ShardStrategy::by_prefix);
    CHECK(large.notes == Names{"the layer of 'h.0' takes 12 bytes, more than 11 bytes; it is stored whole in "
                               "model-00001-of-00004.safetensors",
                               "the layer of 'h.1' takes 12 bytes, more than 11 bytes; it is stored whole in "
                               "model-00002-of-00004.safetensors"});
    CHECK(names_by_file(large) == std::vector<Names>{{"h.0.a", "h.0.b"}, {"h.1.a", "h.1.b"}, {"wte"}, {"head"}});
    tensors = {tensor("h.0.a", Dtype::u8, {6}), tensor("h.0.b", Dtype::u8, {6})};
    CHECK(saved(11, ShardStrategy::by_prefix).notes ==
          Names{"the layer of 'h.0' takes 12 bytes, more than 11 bytes; it is stored whole in model.safetensors"});
}

TEST_CASE("names that would collide are refused before a byte is written") {
    const TempDir dir;
    const auto one = tensor("w", Dtype::f32, {2});
    const auto refused = [&](const std::vector<LazyTensor>& tensors, Errc code) {
        // In different shards too.
        for (const auto* out : {"out", "out.safetensors"})
            CHECK_FAULT(save(dir / out, tensors, {.max_shard_size = 8}), code);
        CHECK(names_in(dir.path()).empty());
    };
    refused({one, tensor("other", Dtype::f32, {2}), one}, Errc::name_collision);
    refused({one, one.renamed("__metadata__")}, Errc::name_collision);
    refused({one.renamed("\xff")}, Errc::invalid_argument);
    refused({one.renamed(std::string("w\0x", 3))}, Errc::bad_name);
    CHECK_FAULT(save(dir / "out", std::vector{one}, {.metadata = {{"k", "\xc0\x80"}}}), Errc::invalid_argument);
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a folder without a checkpoint counts as new, and its files stay") {
    const TempDir dir;
    const auto tensors = some_tensors();
    fs::create_directory(dir / "empty");
    CHECK_OK(save(dir / "empty", tensors));
    CHECK(names_in(dir / "empty") == std::vector<std::string>{"model.safetensors"});
    CHECK_FAULT(save(dir / "empty", tensors), Errc::already_exists);

    fs::create_directory(dir / "notes");
    dir.write("notes/README.md", "mine");
    dir.write("notes/config.json", "{}");
    CHECK_OK(save(dir / "notes", tensors));
    CHECK(TempDir::read(dir / "notes/README.md") == "mine");
    CHECK(Checkpoint::open(dir / "notes").size() == tensors.size());

    // A model in a subfolder is read if the folder itself has none, and no save replaces it.
    fs::create_directories(dir / "around/inner");
    CHECK_OK(save(dir / "around/inner", std::vector{tensor("inner", Dtype::u8, {3})}));
    const std::string inner = TempDir::read(dir / "around/inner/model.safetensors");
    CHECK(Checkpoint::open(dir / "around")["inner"].nbytes() == 3);
    for (const bool overwrite : {false, true}) {
        CHECK_OK(save(dir / "around", tensors, {.overwrite = overwrite}));
        CHECK(TempDir::read(dir / "around/inner/model.safetensors") == inner);
        CHECK(Checkpoint::open(dir / "around").size() == tensors.size());
    }

    // Any file that a save might replace counts as a checkpoint, valid or not.
    for (const char* name : {"pytorch_model.bin", "x.safetensors", "model.safetensors.index.json", "a.ckpt"}) {
        CAPTURE(name);
        const TempDir other;
        fs::create_directory(other / "out");
        other.write(std::string("out/") + name, "old");
        CHECK_FAULT(save(other / "out", tensors), Errc::already_exists);
        CHECK(TempDir::read(other / "out" / name) == "old");
    }
    fs::create_directories(dir / "odd/model.safetensors");
    CHECK_FAULT(save(dir / "odd", tensors), Errc::already_exists);
    fs::create_directory(dir / "f.safetensors");
    CHECK_FAULT(save(dir / "f.safetensors", tensors), Errc::already_exists);
}

TEST_CASE("a name that ends in .sft is one file") {
    const TempDir dir;
    const auto tensors = some_tensors();
    CHECK(save_everywhere(dir / "f.sft", tensors).files == std::vector<std::string>{"f.sft"});
    CHECK(fs::is_regular_file(dir / "f.sft"));
    CHECK(Checkpoint::open(dir / "f.sft").size() == tensors.size());
}

TEST_CASE("one file is written on request, whatever its name") {
    const TempDir dir;
    const auto tensors = some_tensors();
    save_everywhere(dir / "f.safetensors", tensors);
    const std::string expected = TempDir::read(dir / "f.safetensors");
    const std::string longest(242, 'n');
    for (const std::string& name : {std::string("x"), std::string("x.sft"), std::string("y.safetensors"),
                                    std::string("x.bin"), std::string(".x"), std::string(240, 'n'), longest}) {
        CAPTURE(name);
        // The maximum size of shards does not apply to one file.
        const SaveReport report = save(dir / name, tensors, {.one_file = true, .max_shard_size = 46});
        CHECK(report.files == Names{name});
        CHECK(TempDir::read(dir / name) == expected);
        Names both = {name, "f.safetensors"};
        std::sort(both.begin(), both.end());
        CHECK(names_in(dir.path()) == both);
        CHECK(Checkpoint::open(dir / name).size() == tensors.size());
        CHECK_FAULT(save(dir / name, tensors, {.one_file = true}), Errc::already_exists);
        CHECK_FAULT(save(dir / name, tensors, {.one_file = true, .alignment = 7, .plan_only = true}),
                    Errc::invalid_argument);
        save(dir / name, tensors, {.one_file = true, .alignment = 64, .overwrite = true});
        CHECK(fs::file_size(dir / name) > expected.size());
        fs::remove(dir / name);
    }
    CHECK_FAULT(save(dir / std::string(243, 'n'), tensors, {.one_file = true}), Errc::invalid_argument);
    CHECK_FAULT(save(dir / std::string(256, 'n'), tensors, {.one_file = true}), Errc::invalid_argument);
    CHECK(names_in(dir.path()) == Names{"f.safetensors"});
    save(dir / std::string(240, 'n'), tensors);  // a folder
    CHECK(fs::is_directory(dir / std::string(240, 'n')));
}

TEST_CASE("the stem begins the names of the files in a folder") {
    const TempDir dir;
    const auto tensors = some_tensors();
    CHECK(save(dir / "one", tensors, {.stem = "adapter_model"}).files == Names{"adapter_model.safetensors"});
    const SaveReport report = save(dir / "two", tensors, {.stem = "unet", .max_shard_size = 1200});
    CHECK(report.files ==
          Names{"unet-00001-of-00002.safetensors", "unet-00002-of-00002.safetensors", "unet.safetensors.index.json"});
    CHECK(Checkpoint::open(dir / "one").size() == tensors.size());
    CHECK(Checkpoint::open(dir / "two").size() == tensors.size());
    CHECK(save(dir / "f.safetensors", tensors, {.stem = "unet"}).files == Names{"f.safetensors"});
    for (const std::string& stem :
         {std::string(), std::string(".x"), std::string("a/b"), std::string("a\0b", 3), std::string(201, 's')})
        CHECK_FAULT(save(dir / "no", tensors, {.stem = stem}), Errc::invalid_argument);
    CHECK_OK(save(dir / "long", tensors, {.stem = std::string(200, 's'), .max_shard_size = 20}));

    // With `overwrite`, the model of that stem is replaced. A model that readers would prefer is not lost for it.
    CHECK_FAULT(save(dir / "one", tensors, {.stem = "adapter_model"}), Errc::already_exists);
    CHECK_OK(save(dir / "one", tensors, {.stem = "adapter_model", .alignment = 64, .overwrite = true}));
    CHECK(names_in(dir / "one") == Names{"adapter_model.safetensors"});
    CHECK_OK(save(dir / "two", tensors, {.stem = "adapter_model", .overwrite = true}));
    CHECK(names_in(dir / "two") == Names{"adapter_model.safetensors"});
    CHECK_OK(save(dir / "both", tensors, {.stem = "adapter_model"}));
    const SaveReport beside = save(dir / "both", tensors, {.overwrite = true});
    CHECK(only_of(beside.notes) == "'adapter_model.safetensors' in the output folder is of another model, and stays");
    CHECK(names_in(dir / "both") == Names{"adapter_model.safetensors", "model.safetensors"});
    CHECK(save(dir / "cut", tensors, {.stem = "adapter_model", .max_shard_size = 1200}).notes.size() == 1);
    CHECK_OK(save(dir / "base", tensors));
    check_error(error_of([&] { save(dir / "base", tensors, {.stem = "adapter_model", .overwrite = true}); }),
                {Errc::already_exists},
                {"'model.safetensors', which would be opened in place of adapter_model.safetensors"});
    CHECK(names_in(dir / "base") == Names{"model.safetensors"});
}

TEST_CASE("a folder that would not open as the model that is saved into it is left as it is, whatever the stem") {
    const auto tensors = some_tensors();
    const TempDir other;
    save(other / "o.safetensors", std::vector{tensor("optimizer/state/w/exp_avg", Dtype::f32, {3})});
    const Checkpoint optimizer = Checkpoint::open(other / "o.safetensors");
    struct Row {
        const char* there;  ///< a file that stays
        SaveOptions options;
        bool opens;
    };
    const SaveOptions plain;
    const SaveOptions sharded{.max_shard_size = 1200};
    const SaveOptions adapter{.stem = "adapter_model"};
    const SaveOptions adapter_sharded{.stem = "adapter_model", .max_shard_size = 1200};
    const SaveOptions unknown{.stem = "unet"};
    const SaveOptions unknown_sharded{.stem = "unet", .max_shard_size = 1200};
    const SaveOptions with_optimizer{.folders = {{"optimizer", optimizer}}};
    const Row rows[] = {
        {"pytorch_model.bin", plain, true},
        {"pytorch_model.bin.index.json", plain, true},
        {"adapter_model.safetensors", plain, true},
        {"model.fp16.safetensors", plain, true},
        {"pytorch_model.safetensors", plain, false},  // as good as model.safetensors
        {"pytorch_model.safetensors", sharded, true},
        {"flax_model.msgpack.index.json", plain, false},
        {"flax_model.msgpack.index.json", sharded, true},
        {"model.safetensors", adapter, false},
        {"model.safetensors", adapter_sharded, false},
        {"pytorch_model.bin", adapter, false},
        {"model.safetensors", unknown, false},
        {"pytorch_model.bin", unknown_sharded, true},  // the index of any stem is as good as that of model
        {"optimizer/pytorch_model.safetensors", with_optimizer, false},
        {"optimizer/pytorch_model.bin", with_optimizer, true},
    };
    for (const Row& row : rows) {
        CAPTURE(row.there);
        CAPTURE(row.options.stem);
        const TempDir dir;
        fs::create_directories((dir / "out" / row.there).parent_path());
        dir.write("out/" + std::string(row.there), "x");
        SaveOptions options = row.options;
        options.overwrite = true;
        const auto error = error_of([&] { save(dir / "out", tensors, options); });
        CHECK(error.has_value() != row.opens);
        if (row.opens) {
            CHECK(Checkpoint::open(dir / "out").size() == tensors.size());
            continue;
        }
        const fs::path there = dir / "out" / row.there;
        check_error(error, {Errc::already_exists},
                    {"'" + there.filename().native() + "', which would be opened in place of"},
                    {.path = there.parent_path().native()});
        CHECK(names_in(there.parent_path()) == Names{there.filename().native()});
        CHECK(names_in(dir.path()) == Names{"out"});
    }
}

TEST_CASE("one file does not replace a folder, not even an empty one") {
    const TempDir dir;
    const auto tensors = some_tensors();
    fs::create_directory(dir / "empty");
    for (const bool overwrite : {false, true}) {
        const auto error = error_of([&] { save(dir / "empty", tensors, {.one_file = true, .overwrite = overwrite}); });
        check_error(error, {Errc::already_exists}, {});
        CHECK(std::string(error->what()).starts_with("save " + (dir / "empty").native() + ": "));
    }
    CHECK_FAULT(save(dir / "new/", tensors, {.one_file = true}), Errc::invalid_argument);
    CHECK_FAULT(save(dir / "new/", tensors, {.one_file = true, .plan_only = true}), Errc::invalid_argument);
    save(dir / "f", tensors, {.one_file = true});
    CHECK_FAULT(save(dir / "f", tensors, {.overwrite = true}), Errc::already_exists);
    CHECK(names_in(dir.path()) == Names{"empty", "f"});
    CHECK(names_in(dir / "empty").empty());
}

TEST_CASE("an existing target is refused, and the error states the operation") {
    const TempDir dir;
    fs::create_directory(dir / "out");
    dir.write("out/model.safetensors", "old");
    dir.write("f.safetensors", "old");
    const auto tensors = some_tensors();
    CHECK_FAULT(save(dir / "out", tensors), Errc::already_exists);
    CHECK_FAULT(save(dir / "f.safetensors", tensors), Errc::already_exists);
    CHECK(TempDir::read(dir / "f.safetensors") == "old");
    const auto error = error_of([&] { save(dir / "no/out", tensors); });
    check_error(error, {Errc::path_not_found}, {});
    CHECK(error->path() == (dir / "no").native());
    CHECK(std::string(error->what()).starts_with("save " + (dir / "no/out").native() + "/: "));
    CHECK(names_in(dir.path()) == Names{"f.safetensors", "out"});
}

TEST_CASE("a plan writes nothing and reports what a save would do") {
    const TempDir dir;
    const auto tensors = some_tensors();
    const SaveOptions options{.dtype = Dtype::bf16, .max_shard_size = 300};
    SaveOptions plan = options;
    plan.plan_only = true;
    const SaveReport planned = save(dir / "no/such/out", tensors, plan);
    CHECK(names_in(dir.path()).empty());
    const SaveReport done = save(dir / "out", tensors, options);
    CHECK(planned.files == done.files);
    CHECK(planned.bytes_written == done.bytes_written);
    CHECK(planned.bytes_read == done.bytes_read);
    CHECK(planned.tensors == done.tensors);
    CHECK(planned.casts.size() == done.casts.size());
}

TEST_CASE("only floating-point tensors are cast, and the effects of casts are counted") {
    const TempDir dir;
    const std::vector<float> values = {1.0F, -2.5F, 1e30F, std::numeric_limits<float>::quiet_NaN(), 65'504.0F};
    std::vector<std::byte> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    const std::vector<LazyTensor> tensors = {{"x", stored_run(Dtype::f32, {5}, memory_source("m", bytes), 0)},
                                             {"kept", stored_run(Dtype::f32, {5}, memory_source("m", bytes), 0)},
                                             tensor("half", Dtype::f16, {3}),
                                             tensor("ids", Dtype::i64, {3}),
                                             tensor("mask", Dtype::boolean, {3}),
                                             tensor("c", Dtype::c64, {3})};
    const SaveReport report = save_everywhere(dir / "out.safetensors", tensors,
                                              {.dtype = Dtype::f16, .keep_dtype = Selection::names({"kept"})});
    const auto stored = read_file(dir / "out.safetensors");
    CHECK(stored.at("x").dtype == Dtype::f16);
    CHECK(stored.at("kept").dtype == Dtype::f32);
    CHECK(stored.at("half").dtype == Dtype::f16);
    CHECK(stored.at("ids").dtype == Dtype::i64);
    CHECK(stored.at("mask").dtype == Dtype::boolean);
    CHECK(stored.at("c").dtype == Dtype::c64);
    std::uint16_t halves[5];
    std::memcpy(halves, stored.at("x").bytes.data(), sizeof halves);
    CHECK(halves[0] == 0x3C00);
    CHECK(halves[1] == 0xC100);
    CHECK(halves[2] == 0x7C00);
    CHECK((halves[3] & 0x7C00) == 0x7C00);
    CHECK((halves[3] & 0x3FF) != 0);
    CHECK(halves[4] == 0x7BFF);

    REQUIRE(report.casts.size() == 1);
    CHECK(report.casts[0].from == Dtype::f32);
    CHECK(report.casts[0].to == Dtype::f16);
    CHECK(report.casts[0].tensors == 1);
    CHECK(report.casts[0].values == 5);
    CHECK(report.casts[0].overflowed == 1);
    CHECK(report.casts[0].non_finite == 1);
    CHECK_FAULT(save(dir / "out2", tensors, {.dtype = Dtype::i32}), Errc::unsupported_cast);
}

TEST_CASE("dtypes without a name in safetensors are skipped and listed") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("z", Dtype::c128, {2}), tensor("w", Dtype::f32, {2})};
    const SaveReport report = save(dir / "out", tensors);
    REQUIRE(report.skipped.size() == 1);
    CHECK(report.skipped[0].name == "z");
    CHECK(report.skipped[0].type == "torch.complex128");
    CHECK(report.tensors == 1);
    CHECK(read_file(dir / "out/model.safetensors").size() == 1);
}

TEST_CASE("views of one storage stay in one shard, unless it would be too large") {
    const TempDir dir;
    const auto whole = tensor("base", Dtype::u8, {8});
    const auto low = whole.slice({{.start = 0, .stop = 4}}).renamed("low");
    const auto high = whole.slice({{.start = 4, .stop = 8}}).renamed("high");
    const std::vector<LazyTensor> tensors = {low, tensor("x", Dtype::u8, {6}), high};
    save(dir / "together", tensors, {.max_shard_size = 8});
    CHECK(read_file(dir / "together/model-00001-of-00002.safetensors").count("high") == 1);
    save(dir / "apart", tensors, {.max_shard_size = 7});
    CHECK(read_file(dir / "apart/model-00003-of-00003.safetensors").count("high") == 1);
}

TEST_CASE("random tensors of every dtype, shape and stride are read back equal from shards of any size") {
    std::mt19937_64 random(20261121);
    const auto up_to = [&](std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n)(random); };
    for (int round = 0; round < 60; ++round) {
        CAPTURE(round);
        const TempDir dir;
        std::vector<LazyTensor> tensors;
        std::map<std::string, std::vector<std::byte>> values;
        const std::size_t count = up_to(12);
        for (std::size_t i = 0; i < count; ++i) {
            const auto dtype = static_cast<Dtype>(up_to(safetensors_dtypes - 1));
            Shape shape(up_to(4), 0);
            for (auto& dimension : shape) dimension = up_to(9);
            if (!whole_bytes(dtype)) shape.push_back(8);
            const std::string name = "t" + std::to_string(i);
            const std::uint64_t elements = element_count(shape).value();
            const auto bytes = random_bytes(static_cast<std::size_t>(byte_size(dtype, elements).value()), random());
            const auto stored = stored_run(dtype, shape, memory_source(name, bytes), 0);
            if (!whole_bytes(dtype) || elements == 0) {
                tensors.emplace_back(name, stored);
                values[name] = bytes;
                continue;
            }
            // Dimensions in random order, some reversed.
            StridedView view{.shape = Shape(shape.size(), 0), .strides = Strides(shape.size(), 0), .offset = 0};
            std::vector<std::size_t> order(shape.size());
            for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
            std::shuffle(order.begin(), order.end(), random);
            const Strides strides = row_major(shape);
            for (std::size_t d = 0; d < order.size(); ++d) {
                view.shape[d] = shape[order[d]];
                view.strides[d] = strides[order[d]];
                if (up_to(3) != 0) continue;
                view.offset += static_cast<std::int64_t>(view.shape[d] - 1) * view.strides[d];
                view.strides[d] = -view.strides[d];
            }
            tensors.emplace_back(name, stored, view);
            values[name] = value_of(tensors.back(), bytes);
        }
        const SaveReport report =
            save(dir / "out", tensors,
                 {.max_shard_size = 1 + up_to(5'000), .work = {.threads = static_cast<unsigned>(up_to(4))}});
        std::map<std::string, Stored> found;
        for (const auto& name : report.files)
            if (name.ends_with(".safetensors")) found.merge(read_file(dir / "out" / name));
        REQUIRE(found.size() == tensors.size());
        for (const LazyTensor& t : tensors) {
            CAPTURE(t.name());
            CHECK(found.at(t.name()).dtype == t.dtype());
            CHECK(found.at(t.name()).shape == t.shape());
            CHECK(found.at(t.name()).bytes == values.at(t.name()));
        }
    }
}

TEST_CASE(
    "tensors larger than a block, contiguous, transposed and cast, give the same bytes with any number of threads") {
    const TempDir dir;
    // 20 MiB across block boundaries, a transpose of 18 MiB in tiles, a cast of 12 MiB, and small ones around them.
    const std::vector<LazyTensor> tensors = {
        tensor("small", Dtype::f32, {1000}, 1),          tensor("large", Dtype::f32, {5'242'880}, 2),
        transposed("turned", Dtype::f32, 2048, 2304, 3), tensor("wide", Dtype::f64, {1'572'864}, 4),
        tensor("odd", Dtype::u8, {8'388'609}, 5),        transposed("little", Dtype::i16, 300, 200, 6),
        tensor("six", Dtype::f6_e2m3, {12'000'000}, 7),  tensor("last", Dtype::boolean, {3}, 8)};
    std::map<unsigned, std::map<std::string, std::string>> contents;
    for (const unsigned threads : {1U, 2U, 5U}) {
        const fs::path out = dir / ("out" + std::to_string(threads));
        save(out, tensors, {.dtype = Dtype::f32, .max_shard_size = 30'000'000, .work = {.threads = threads}});
        contents[threads] = contents_of(out);
        fs::remove_all(out);
    }
    CHECK(contents[1].size() == 4);
    CHECK(contents[1] == contents[2]);
    CHECK(contents[1] == contents[5]);
    {
        const ShrunkMemory small;  // the same, bypassing the page cache
        save(dir / "around", tensors, {.dtype = Dtype::f32, .max_shard_size = 30'000'000});
    }
    CHECK(contents[1] == contents_of(dir / "around"));

    save(dir / "out", tensors, {.keep_dtype = Selection()});
    const auto stored = read_file(dir / "out/model.safetensors");
    CHECK(stored.at("large").bytes == random_bytes(5'242'880 * 4, 2));
    CHECK(stored.at("odd").bytes == random_bytes(8'388'609, 5));
    CHECK(stored.at("six").bytes == random_bytes(9'000'000, 7));
    CHECK(stored.at("turned").bytes == value_of(tensors[2], random_bytes(2048 * 2304 * 4, 3)));
    CHECK(stored.at("little").bytes == value_of(tensors[5], random_bytes(300 * 200 * 2, 6)));
}

TEST_CASE("tensors in boxes give the same bytes as in one run, with any number of threads, cast or not") {
    const TempDir dir;
    constexpr std::uint64_t rows = 1'100;
    constexpr std::uint64_t columns = 2'100;
    const std::vector<std::byte> bytes = random_bytes(rows * columns * 4, 14);
    // Columns of 70 elements, each in its own source.
    std::vector<BoxPiece> boxes;
    for (std::uint64_t first = 0; first < columns; first += 70) {
        std::vector<std::byte> part;
        for (std::uint64_t row = 0; row < rows; ++row) {
            const auto at = bytes.begin() + static_cast<std::ptrdiff_t>((row * columns + first) * 4);
            part.insert(part.end(), at, at + 280);
        }
        boxes.push_back({memory_source("part", std::move(part)), 0, {{0, first}, {rows, 70}}, {70, 1}});
    }
    const auto whole = memory_source("whole", bytes);
    const auto tensors = [&](const std::shared_ptr<const StoredTensor>& stored) {
        const LazyTensor w("w", stored);
        return std::vector<LazyTensor>{tensor("a", Dtype::u8, {5}, 1), w,
                                       w.slice({{.start = 3, .step = 2}, {.start = 100}}).renamed("x"),
                                       w.slice({{.stop = 2}}).renamed("y")};
    };
    soak::Sample sample(2);
    for (const unsigned threads : {1U, 3U})
        for (const auto dtype : {std::optional<Dtype>(), std::optional(Dtype::bf16)}) {
            if (!sample.next()) continue;
            const SaveOptions options{.dtype = dtype, .checksums = true, .work = {.threads = threads}};
            save_everywhere(dir / "boxes.safetensors", tensors(stored_boxes(Dtype::f32, {rows, columns}, boxes)),
                            options);
            save_everywhere(dir / "run.safetensors", tensors(stored_run(Dtype::f32, {rows, columns}, whole, 0)),
                            options);
            CHECK(TempDir::read(dir / "boxes.safetensors") == TempDir::read(dir / "run.safetensors"));
            fs::remove(dir / "boxes.safetensors");
            fs::remove(dir / "run.safetensors");
        }
}

TEST_CASE("many small tensors share blocks") {
    const TempDir dir;
    std::vector<LazyTensor> tensors;
    const auto bytes = random_bytes(40'000'000, 3);
    const auto source = memory_source("m", bytes);
    std::uint64_t offset = 0;
    std::mt19937_64 random(5);
    for (int i = 0; i < 3'000; ++i) {
        const std::uint64_t size = random() % 20'000;
        if (offset + size > bytes.size()) break;
        tensors.emplace_back("t" + std::to_string(i), stored_run(Dtype::u8, {size}, source, offset));
        offset += size;
    }
    save_everywhere(dir / "out.safetensors", tensors);
    const auto stored = read_file(dir / "out.safetensors");
    REQUIRE(stored.size() == tensors.size());
    for (const LazyTensor& t : tensors) {
        std::vector<std::byte> value(static_cast<std::size_t>(t.nbytes()));
        t.read(0, value);
        REQUIRE(stored.at(t.name()).bytes == value);
    }
}

TEST_CASE("progress reaches the total on the caller's thread, with at most ten calls per second") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {1'000'000}), tensor("v", Dtype::u8, {77})};
    std::vector<std::uint64_t> seen;
    const auto thread = std::this_thread::get_id();
    SaveOptions options;
    options.work.monitor.on_progress = [&](const Progress& progress) {
        CHECK(std::this_thread::get_id() == thread);
        CHECK(progress.bytes_total == 4'000'077);
        CHECK(progress.stage == "converting");
        seen.push_back(progress.bytes_done);
        return true;
    };
    save(dir / "out", tensors, options);
    REQUIRE(seen.size() >= 2);
    CHECK(std::is_sorted(seen.begin(), seen.end()));
    CHECK(seen.front() == 0);
    CHECK(seen.back() == 4'000'077);
}

TEST_CASE("a cancelled save leaves nothing, at any time") {
    const TempDir dir;
    // A source slow enough for several progress calls.
    const auto slow = callback_source("slow", 6'000'000, [](std::uint64_t, std::span<std::byte> into) {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        std::fill(into.begin(), into.end(), std::byte{1});
    });
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 6; ++i)
        tensors.emplace_back("t" + std::to_string(i), stored_run(Dtype::u8, {1'000'000}, slow, i * 1'000'000));
    int longest = 0;
    bool finished = false;
    for (int nth = 1; !finished; ++nth) {
        CAPTURE(nth);
        REQUIRE(nth < 50);
        int calls = 0;
        SaveOptions options{.max_shard_size = 1'000'000};
        options.work.monitor.on_progress = [&](const Progress&) { return ++calls != nth; };
        const auto error = error_of([&] { save(dir / "out", tensors, options); });
        longest = std::max(longest, calls);
        finished = !error;
        if (error) {
            CHECK(error->code() == Errc::cancelled);
            CHECK(calls == nth);
            CHECK(names_in(dir.path()).empty());
        }
    }
    CHECK(longest >= 3);
    CHECK(names_in(dir / "out").size() == 7);

    std::stop_source stop;
    stop.request_stop();
    CHECK_FAULT(save(dir / "stopped", tensors, {.work = {.monitor = {.stop = stop.get_token()}}}), Errc::cancelled);
    CHECK(names_in(dir.path()) == Names{"out"});
}

TEST_CASE("exceptions of the caller's functions pass through, and nothing is left") {
    const TempDir dir;
    SaveOptions options;
    options.work.monitor.on_progress = [](const Progress&) -> bool { throw std::runtime_error("mine"); };
    CHECK_THROWS_AS(save(dir / "out", some_tensors(), options), std::runtime_error);
    const auto bad =
        callback_source("bad", 8, [](std::uint64_t, std::span<std::byte>) { throw std::logic_error("mine too"); });
    const std::vector<LazyTensor> tensors = {{"w", stored_run(Dtype::f32, {2}, bad, 0)}};
    CHECK_THROWS_AS(save(dir / "out", tensors), std::logic_error);
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a tensor that is already cast and would be cast again is refused before a byte is written") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("plain", Dtype::f32, {4}),
                                             tensor("twice", Dtype::f32, {4}).cast(Dtype::f16)};
    for (const bool plan_only : {true, false}) {
        bool told = false;
        SaveOptions options{.dtype = Dtype::bf16, .plan_only = plan_only};
        options.work.monitor.on_progress = [&](const Progress&) { return told = true; };
        check_error(error_of([&] { save(dir / "out", tensors, options); }), {Errc::unsupported_cast}, {},
                    {.tensor = "twice"});
        CHECK_FALSE(told);
    }
    CHECK_OK(save(dir / "out", tensors, {.dtype = Dtype::f16}));
}

TEST_CASE("a total size beyond 2^64 bytes is refused, and so is a file larger than the disk") {
    const TempDir dir;
    const LazyTensor one = tensor("t", Dtype::u8, {1});
    std::vector<LazyTensor> tensors;
    for (int i = 0; i < 16; ++i)
        tensors.emplace_back("t" + std::to_string(i), one.stored(),
                             StridedView{.shape = {std::uint64_t{1} << 60}, .strides = {0}});
    for (const auto* out : {"out", "out.safetensors"}) {
        CHECK_FAULT(save(dir / out, tensors, {.plan_only = true}), Errc::shape_overflow);
        CHECK_FAULT(save(dir / out, std::span(tensors).first(8), {.max_shard_size = UINT64_MAX}), Errc::no_space);
    }
    CHECK(names_in(dir.path()).empty());
}

TEST_CASE("a tensor of more than 2^32 bytes is written completely" * doctest::skip(!soak::whole())) {
    const TempDir dir = TempDir::in_memory();
    constexpr std::uint64_t size = (std::uint64_t{1} << 32) + 4'096 + 3;
    if (fs::space(dir.path()).available < size + (std::uint64_t{1} << 30)) {
        MESSAGE("skipped: no space for 4 GiB");
        return;
    }
    // Zeros, except that each block of 64 KiB begins with its number.
    constexpr std::uint64_t block = 65'536;
    const auto source = callback_source("large", size, [](std::uint64_t offset, std::span<std::byte> into) {
        std::memset(into.data(), 0, into.size());
        for (std::uint64_t at = (offset + block - 1) / block * block; at < offset + into.size(); at += block)
            into[at - offset] = static_cast<std::byte>(at / block % 251 + 1);
    });
    const std::vector<LazyTensor> tensors = {{"large", stored_run(Dtype::u8, {size}, source, 0)},
                                             tensor("small", Dtype::boolean, {5}, 7)};
    CHECK_OK(save(dir / "out.safetensors", tensors));
    const Checkpoint written = Checkpoint::open(dir / "out.safetensors");
    CHECK(written["large"].nbytes() == size);
    const TensorView small = written["small"].load();
    CHECK(std::ranges::equal(small.bytes(), random_bytes(5, 7)));
    std::byte byte{};
    std::uint64_t wrong = 0;
    for (std::uint64_t at = 0; at < size; at += block) {
        written["large"].read(at, {&byte, 1});
        wrong += byte == static_cast<std::byte>(at / block % 251 + 1) ? 0 : 1;
    }
    CHECK(wrong == 0);
    written["large"].read(size - 1, {&byte, 1});
    CHECK(byte == std::byte{0});
}

namespace {

/// Returns the length of the header of each safetensors file of a folder.
std::map<std::string, std::uint64_t> header_lengths(const fs::path& folder) {
    std::map<std::string, std::uint64_t> lengths;
    for (const std::string& name : names_in(folder)) {
        if (!name.ends_with(".safetensors")) continue;
        const std::string bytes = TempDir::read(folder / name);
        REQUIRE(bytes.size() >= 8);
        std::memcpy(&lengths[name], bytes.data(), 8);
    }
    return lengths;
}

bool same_bytes(const LazyTensor& a, const LazyTensor& b) {
    const TensorView left = a.load();
    const TensorView right = b.load();
    return left.dtype() == right.dtype() && left.shape() == right.shape() &&
           std::ranges::equal(left.bytes(), right.bytes());
}

}  // namespace

TEST_CASE("shards are cut so that no header is longer than allowed") {
    const TempDir dir = TempDir::in_memory();
    std::mt19937 random(soak::seed(16));
    for (int round = 0; round < soak::rounds(60, 6); ++round) {
        CAPTURE(round);
        std::vector<LazyTensor> tensors;
        for (std::uint64_t i = 0; i < 150; ++i) {
            // Characters that JSON escapes, twice in a list of digests.
            const std::string odd = random() % 4 == 0 ? "\"\\\x01\n" : std::string(random() % 40, 'n');
            tensors.push_back(tensor("layers." + std::to_string(i / 5) + ".w" + std::to_string(i) + odd, Dtype::u8,
                                     {random() % 30, 1 + random() % 3}, i));
        }
        // Views of one storage, more than one header has room for.
        const LazyTensor flat = tensor("flat", Dtype::f32, {40}, 3);
        for (std::uint64_t i = 0; i < 40; ++i) {
            const auto view =
                flat.slice({{.start = static_cast<std::int64_t>(i), .stop = static_cast<std::int64_t>(i) + 1}});
            tensors.emplace_back("view." + std::to_string(i), view.stored(), view.strided_view());
        }
        SaveOptions options{.max_header_bytes = 2'500, .metadata = {{"note", std::string(random() % 2'000, '"')}}};
        options.checksums = random() % 2 == 0;
        options.strategy =
            std::array{ShardStrategy::greedy, ShardStrategy::balanced, ShardStrategy::by_prefix}[random() % 3];
        options.alignment = random() % 2 == 0 ? 8 : 64;
        options.overwrite = true;
        CAPTURE(options.checksums);
        SaveReport report;
        CHECK_OK(report = save(dir / "out", tensors, options));
        const auto lengths = header_lengths(dir / "out");
        CHECK(lengths.size() > 4);
        for (const auto& [name, length] : lengths) CHECK(length <= options.max_header_bytes);
        const Checkpoint saved = Checkpoint::open(dir / "out", {.max_header_bytes = options.max_header_bytes});
        REQUIRE(saved.size() == tensors.size());
        for (const LazyTensor& each : tensors) CHECK(same_bytes(saved[each.name()], each));

        // A limit that all of them are within changes nothing.
        options.max_header_bytes = 1'000'000;
        save(dir / "wide", tensors, options);
        options.max_header_bytes = SaveOptions().max_header_bytes;
        save(dir / "usual", tensors, options);
        CHECK(contents_of(dir / "wide") == contents_of(dir / "usual"));
    }
}

TEST_CASE("a header that cannot be made short enough is refused, with the option that helps") {
    const TempDir dir = TempDir::in_memory();
    std::vector<LazyTensor> tensors;
    for (std::uint64_t i = 0; i < 20; ++i)
        tensors.push_back(tensor("layers.0." + std::to_string(i), Dtype::f32, {2}, i));
    save(dir / "one.safetensors", tensors);
    std::uint64_t length = 0;
    std::memcpy(&length, TempDir::read(dir / "one.safetensors").data(), 8);
    const auto refused = [&](const fs::path& out, const SaveOptions& options, const char* hint) {
        const auto error = error_of([&] { save(out, tensors, options); });
        check_error(error, {Errc::header_too_large}, {});
        CHECK(error->hint().find(hint) != std::string::npos);
        CHECK(error->hint().find("--max-header-size") != std::string::npos);
        CHECK(names_in(dir.path()) == Names{"one.safetensors"});
    };
    refused(dir / "two.safetensors", {.max_header_bytes = length - 1}, "--max-shard-size");
    refused(dir / "two", {.max_header_bytes = 200, .strategy = ShardStrategy::by_prefix}, "");
    refused(dir / "two", {.max_header_bytes = 80}, "");
    refused(dir / "two", {.max_header_bytes = 300, .ranks = 2}, "");
    CHECK_OK(save(dir / "two.safetensors", tensors, {.max_header_bytes = length}));
    CHECK(TempDir::read(dir / "two.safetensors") == TempDir::read(dir / "one.safetensors"));

    // A folder of one file has the metadata in the file; with more files the index has it.
    CHECK_OK(save(dir / "out", tensors, {.max_header_bytes = 2'500, .metadata = {{"note", std::string(2'000, 'x')}}}));
    CHECK(names_in(dir / "out").size() == 3);
    CHECK(Checkpoint::open(dir / "out").size() == tensors.size());
}

TEST_CASE("two shards with long headers are merged as far as the limit allows") {
    const TempDir dir = TempDir::in_memory();
    constexpr std::uint64_t limit = 4'000;
    std::vector<fs::path> parts;
    for (const char* part : {"a", "b"}) {
        std::vector<LazyTensor> tensors;
        for (std::uint64_t i = 0; i < 40; ++i)
            tensors.push_back(tensor(part + std::to_string(100 + i), Dtype::f32, {2}, i));
        parts.push_back(dir / (std::string(part) + ".safetensors"));
        save(parts.back(), tensors, {.max_header_bytes = limit});
    }
    const Checkpoint both = Checkpoint::open(parts, {.max_header_bytes = limit});
    CHECK_FAULT(save(dir / "one.safetensors", both, {.max_header_bytes = limit}), Errc::header_too_large);
    CHECK_OK(save(dir / "out", both, {.max_header_bytes = limit}));
    CHECK(header_lengths(dir / "out").size() == 2);
    CHECK_OK(save(dir / "one.safetensors", both, {.max_header_bytes = 2 * limit}));
    CHECK_FAULT(Checkpoint::open(dir / "one.safetensors", {.max_header_bytes = limit}), Errc::header_too_large);
    const Checkpoint one = Checkpoint::open(dir / "one.safetensors", {.max_header_bytes = 2 * limit});
    const Checkpoint shards = Checkpoint::open(dir / "out", {.max_header_bytes = limit});
    for (const LazyTensor& each : both) {
        CHECK(same_bytes(one[each.name()], each));
        CHECK(same_bytes(shards[each.name()], each));
    }
}

}  // namespace save_test
