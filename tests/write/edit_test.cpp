// Tests of edit.hpp: edit(), which changes metadata and names, and repair(), which rewrites non-conforming files.
#include <safemap/advanced/edit.hpp>

#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "io/scripted_calls.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

namespace edit_test {

using namespace safemap;
using namespace samples;

namespace {

using Names = std::vector<std::string>;
using Metadata = std::map<std::string, std::string>;

std::vector<LazyTensor> tensors() {
    return {tensor("a", Dtype::f32, {100}, 1), tensor("b", Dtype::bf16, {3, 5}, 2), tensor("c", Dtype::u8, {7}, 3)};
}

fs::path saved(const TempDir& dir, SaveOptions options = {}) {
    options.metadata.insert({"tied", "a"});
    options.metadata.insert({"license", "mit"});
    options.overwrite = true;
    save_everywhere(dir / "f.safetensors", tensors(), options);
    return dir / "f.safetensors";
}

/// Returns a file with this header, followed by `size` data bytes 0, 1, 2, …
fs::path forged(const TempDir& dir, std::string_view header, std::size_t size, const char* name = "in.safetensors") {
    std::string data;
    for (std::size_t i = 0; i < size; ++i) data += static_cast<char>(i);
    return dir.write(name, forge::safetensors(header, data));
}

std::vector<std::byte> counting(unsigned first, unsigned count) {
    std::vector<std::byte> bytes;
    for (unsigned i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(first + i));
    return bytes;
}

bool mentions(const std::vector<std::string>& sentences, const char* what) {
    return std::any_of(sentences.begin(), sentences.end(),
                       [=](const std::string& sentence) { return sentence.find(what) != std::string::npos; });
}

}  // namespace

TEST_CASE("metadata is set, replaced and removed, and values do not change") {
    const TempDir dir;
    const fs::path file = saved(dir);
    EditReport report;
    CHECK_OK(report = edit(file, {.set = {{"license", "apache"}, {"by", "us"}}, .unset = {"tied"}}));
    CHECK(report.changed);
    CHECK(report.renamed == 0);
    CHECK(metadata_of(file) == Metadata{{"by", "us"}, {"format", "pt"}, {"license", "apache"}});
    CHECK(Metadata(report.metadata.begin(), report.metadata.end()) == metadata_of(file));
    CHECK(read_file(file).at("a").bytes == random_bytes(400, 1));
    CHECK(names_in(dir.path()) == Names{"f.safetensors"});
}

TEST_CASE("tensors are renamed, and tied names follow them") {
    const TempDir dir;
    const fs::path file = saved(dir);
    EditReport report;
    CHECK_OK(report = edit(file, {.rename = {{"a", "model.a"}, {"tied", "model.tied"}, {"c", "c"}}}));
    CHECK(report.renamed == 2);
    const Checkpoint model = Checkpoint::open(file);
    CHECK(model.size() == 3);
    CHECK(model.aliases() == std::vector<AliasGroup>{{"model.a", "model.tied"}});
    CHECK(model.find("tied") == nullptr);
    CHECK(read_file(file).at("model.a").bytes == random_bytes(400, 1));
    CHECK(metadata_of(file).at("model.tied") == "model.a");
    // Two names can be swapped.
    CHECK_OK(edit(file, {.rename = {{"b", "c"}, {"c", "b"}}}));
    CHECK(read_file(file).at("b").bytes == random_bytes(7, 3));
    CHECK(read_file(file).at("c").bytes == random_bytes(30, 2));
}

TEST_CASE("hashes of a file do not outlive the file") {
    const TempDir dir;
    const Metadata hashes = {{"sshs_model_hash", "1"}, {"sshs_legacy_hash", "2"}, {"modelspec.hash_sha256", "0x3"}};
    Metadata metadata = hashes;
    metadata.insert({"ss_network_dim", "8"});
    const fs::path file = dir / "lora.safetensors";
    save(file, tensors(), {.metadata = metadata});
    CHECK_FALSE(edit(file, {}).changed);

    const SaveReport report = save(dir / "out", Checkpoint::open(file));
    CHECK(report.notes.size() == 3);
    CHECK(mentions(report.notes, "the metadata 'sshs_model_hash' is left out"));
    const Checkpoint out = Checkpoint::open(dir / "out");
    const auto& written = out.metadata();
    REQUIRE(written.size() == 2);
    CHECK(written[1].first == "ss_network_dim");
    // A caller may give hashes of the new file.
    CHECK(save(dir / "given", Checkpoint::open(file), {.metadata = {{"sshs_model_hash", "9"}}}).notes.size() == 2);

    EditReport edited;
    CHECK_OK(edited = edit(file, {.set = {{"by", "us"}, {"sshs_legacy_hash", "7"}}}));
    CHECK(edited.metadata == decltype(edited.metadata){
                                 {"by", "us"}, {"format", "pt"}, {"ss_network_dim", "8"}, {"sshs_legacy_hash", "7"}});
}

TEST_CASE("an edit without changes does not write the file") {
    const TempDir dir;
    const fs::path file = saved(dir);
    const auto before = open_file(file)->identity();
    EditReport report;
    CHECK_OK(report = edit(file, {.set = {{"license", "mit"}}, .rename = {{"a", "a"}}}));
    CHECK(!report.changed);
    CHECK(open_file(file)->identity() == before);
}

TEST_CASE("an edited file keeps the alignment of its data, its permissions and its digests") {
    const TempDir dir;
    for (const std::uint32_t alignment : {8U, 64U, 256U, 4096U}) {
        CAPTURE(alignment);
        const fs::path file = saved(dir, {.alignment = alignment, .checksums = true});
        fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
        CHECK_OK(edit(file, {.set = {{"long", std::string(1'000, 'x')}}, .rename = {{"a", "z"}}}));
        const Checkpoint model = Checkpoint::open(file);
        CHECK(model["z"].placement()->extent.offset % alignment == 0);
        CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
        const VerifyReport verified = verify(file);
        CHECK(verified.ok());
        CHECK(verified.checked_bytes == 400 + 30 + 7);
        CHECK(metadata_of(file).at("safemap.checkpoint_xxh3_128") == digests(model).checkpoint);
    }
}

TEST_CASE("a damaged file does not get new digests") {
    const TempDir dir;
    const fs::path file = saved(dir, {.checksums = true});
    std::string bytes = TempDir::read(file);
    bytes.back() ^= 1;
    dir.write("f.safetensors", bytes);
    CHECK_FAULT(edit(file, {.set = {{"x", "y"}}}), Errc::checksum_mismatch);
    CHECK(TempDir::read(file) == bytes);
}

TEST_CASE("an invalid edit is refused, and the file does not change") {
    const TempDir dir;
    const fs::path file = saved(dir);
    const std::string before = TempDir::read(file);
    CHECK_FAULT(edit(file, {.unset = {"nothing"}}), Errc::invalid_argument);
    CHECK_FAULT(edit(file, {.rename = {{"nothing", "x"}}}), Errc::invalid_argument);
    CHECK_FAULT(edit(file, {.rename = {{"a", "b"}}}), Errc::name_collision);
    CHECK_FAULT(edit(file, {.rename = {{"a", "__metadata__"}}}), Errc::name_collision);
    CHECK_FAULT(edit(file, {.rename = {{"tied", "license"}}}), Errc::name_collision);
    CHECK_FAULT(edit(dir / "none.safetensors", {}), Errc::path_not_found);
    CHECK_FAULT(edit(dir.path(), {}), Errc::invalid_argument);
    fs::copy_file(file, dir / "other.name");
    CHECK_FAULT(edit(dir / "other.name", {.set = {{"x", "y"}}}), Errc::invalid_argument);
    CHECK(TempDir::read(file) == before);
}

TEST_CASE("a file that was replaced after it was read is not overwritten by the edit") {
    const TempDir dir;
    const fs::path file = saved(dir);
    EditOptions options{.set = {{"x", "y"}}};
    bool done = false;
    options.work.monitor.on_progress = [&](const Progress&) {
        if (!std::exchange(done, true)) {
            save_everywhere(dir / "other.safetensors", std::vector{tensor("other", Dtype::u8, {1})});
            fs::rename(dir / "other.safetensors", file);
        }
        return true;
    };
    CHECK_FAULT(edit(file, options), Errc::file_changed);
    CHECK(read_file(file).count("other") == 1);
    CHECK(names_in(dir.path()) == Names{"f.safetensors"});
}

TEST_CASE("keys that resemble digest keys are ordinary keys, and digest keys cannot be edited") {
    const TempDir dir;
    const fs::path file = saved(dir, {.checksums = true});
    for (const std::string key : {"a\"safemap.checkpoint_xxh3_128", "a\"safemap.xxh3_128", "\\\"safemap.xxh3_128",
                                  "a\\", "\":\"safemap.xxh3_128"}) {
        CAPTURE(key);
        CHECK_OK(edit(file, {.set = {{key, "0123456789abcdef0123456789abcdef"}}}));
        CHECK(metadata_of(file).at(key) == "0123456789abcdef0123456789abcdef");
        CHECK(verify(file).ok());
        CHECK(verify(file).checked_bytes == 437);
    }
    CHECK_FAULT(edit(file, {.unset = {"safemap.xxh3_128"}}), Errc::invalid_argument);
    CHECK_FAULT(edit(file, {.set = {{"safemap.checkpoint_xxh3_128", "x"}}}), Errc::invalid_argument);
}

TEST_CASE("every system call of an edit may fail: the file is the old one, or the new one") {
    const TempDir dir = TempDir::in_memory();
    bool failed = true;
    for (int nth = 1; failed; ++nth) {
        CAPTURE(nth);
        REQUIRE(nth < 200);
        const fs::path file = saved(dir);
        const auto failure = fail_at(nth, EIO, [&] { edit(file, {.set = {{"x", "y"}}}); });
        const auto& error = failure.error;
        failed = !failure.which.empty();
        if (!error) CHECK(metadata_of(file).count("x") == 1);
        CHECK(read_file(file).at("a").bytes == random_bytes(400, 1));
        CHECK_OK(edit(file, {.set = {{"x", "z"}}}));
        CHECK(names_in(dir.path()) == Names{"f.safetensors"});
    }
}

TEST_CASE("a valid file needs no repair, and is written unchanged") {
    const TempDir dir;
    save_everywhere(dir / "f.safetensors", tensors());
    RepairReport report;
    CHECK_OK(report = repair(dir / "f.safetensors", dir / "g.safetensors"));
    CHECK(report.repairs.empty());
    CHECK(TempDir::read(dir / "f.safetensors") == TempDir::read(dir / "g.safetensors"));
    save(dir / "shards", tensors(), {.max_shard_size = 400});
    CHECK_OK(report = repair(dir / "shards", dir / "again", {.max_shard_size = 400}));
    CHECK(report.repairs.empty());
    CHECK(contents_of(dir / "shards") == contents_of(dir / "again"));
}

TEST_CASE("gaps, shared bytes, trailing bytes, wrong order and misaligned data are repaired") {
    const auto tensor_at = [](const char* name, unsigned begin, unsigned end) {
        const std::string size = std::to_string(end - begin);
        return '"' + std::string(name) + R"(":{"dtype":"U8","shape":[)" + size + R"(],"data_offsets":[)" +
               std::to_string(begin) + ',' + std::to_string(end) + "]}";
    };
    const auto header = [](const std::string& one, const std::string& other) { return '{' + one + ',' + other + '}'; };
    struct Row {
        const char* what;
        std::string header;
        std::size_t size;
        unsigned a, b;  // first byte of each tensor
        const char* told;
    };
    const std::string a = tensor_at("a", 0, 4);
    const Row rows[] = {
        {"a gap between tensors", header(a, tensor_at("b", 8, 12)), 12, 0, 8, "leave a gap of 4 bytes"},
        {"a gap at the beginning", header(tensor_at("a", 4, 8), tensor_at("b", 8, 12)), 12, 4, 8,
         "leave a gap of 4 bytes"},
        {"shared bytes", header(a, tensor_at("b", 2, 6)), 6, 0, 2, "overlap the previous tensor"},
        {"the same bytes twice", header(a, tensor_at("b", 0, 4)), 4, 0, 0, "overlap the previous tensor"},
        {"bytes behind the end", header(a, tensor_at("b", 4, 8)), 11, 0, 4, "3 bytes after the last tensor"},
        {"another order", header(tensor_at("b", 0, 4), tensor_at("a", 4, 8)), 8, 4, 0,
         "are not in the reference order"},
        {"a crooked beginning", header(a, tensor_at("b", 4, 8)) + "   ", 8, 0, 4, "not a multiple of 8"},
        {"a dtype without a name or bytes",
         header(a, tensor_at("b", 4, 8) + R"(,"c":{"dtype":"","shape":[0],"data_offsets":[8,8]})"), 8, 0, 4,
         "tensor 'c': it has no bytes, and is left out"},
        {"a name twice", header(tensor_at("a", 0, 1), a + ',' + tensor_at("b", 4, 8)), 8, 0, 4, "duplicate name"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.what);
        const TempDir dir;
        forged(dir, row.header, row.size);
        RepairReport report;
        CHECK_OK(report = repair(dir / "in.safetensors", dir / "out.safetensors"));
        CHECK(mentions(report.repairs, row.told));
        CHECK(mentions(report.repairs, "in.safetensors: "));
        const auto found = read_file(dir / "out.safetensors");
        REQUIRE(found.size() == 2);
        CHECK(found.at("a").bytes == counting(row.a, 4));
        CHECK(found.at("b").bytes == counting(row.b, 4));
        OpenOptions strict;
        strict.policy = Policy::strict;
        CHECK_OK(Checkpoint::open(dir / "out.safetensors", strict));
        CHECK(repair(dir / "out.safetensors", dir / "again.safetensors").repairs.empty());
    }
}

TEST_CASE("damage that would need guessing is not repaired, and nothing is written") {
    const TempDir dir;
    const auto refused = [&](const char* header, std::size_t size, Errc code) {
        CAPTURE(header);
        forged(dir, header, size);
        CHECK_FAULT(repair(dir / "in.safetensors", dir / "out.safetensors"), code);
        CHECK(names_in(dir.path()) == Names{"in.safetensors"});
    };
    refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3, Errc::file_truncated);
    refused(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", 4, Errc::size_mismatch);
    refused(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, Errc::offsets_reversed);
    refused(R"({"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}})", 4, Errc::unknown_dtype);
    refused("{", 4, Errc::header_not_json);
}

TEST_CASE("an index is repaired from its shards") {
    const TempDir dir;
    save(dir / "in", tensors(), {.max_shard_size = 400, .metadata = {{"by", "us"}}});
    const std::string index = TempDir::read(dir / "in/model.safetensors.index.json");
    const auto with = [&](const std::string& text) {
        dir.write("in/model.safetensors.index.json", text);
        fs::remove_all(dir / "out");
        return repair(dir / "in", dir / "out", {.max_shard_size = 400}).repairs;
    };
    std::string wrong = index;
    wrong.replace(wrong.find("437"), 3, "438");
    CHECK(mentions(with(wrong), "total_size is 438"));
    CHECK(TempDir::read(dir / "out/model.safetensors.index.json") == index);
    wrong = index;
    const std::size_t line = wrong.find("    \"b\"");
    wrong.erase(line, wrong.find('\n', line) + 1 - line);
    CHECK(mentions(with(wrong), "does not name 'b'"));
    CHECK(TempDir::read(dir / "out/model.safetensors.index.json") == index);
    wrong = index;
    wrong.insert(line, "    \"d\": \"model-00001-of-00002.safetensors\",\n");
    dir.write("in/model.safetensors.index.json", wrong);
    CHECK_FAULT(repair(dir / "in", dir / "no"), Errc::shard_lacks_tensor);
    wrong = index;
    const std::size_t other = wrong.find("model-00002-of-00002", line);
    REQUIRE(other != std::string::npos);
    wrong.replace(other, 20, "model-00001-of-00002");
    CHECK(mentions(with(wrong), "in shards that do not hold them"));
    CHECK(!fs::exists(dir / "no"));

    // A tensor in two shards: the index decides, if it names one of them.
    fs::create_directory(dir / "twice");
    dir.write("twice/1", forge::u8_file({{"a", 1}, {"b", 1}}));
    dir.write("twice/2", forge::u8_file({{"a", 1}, {"c", 1}}));
    dir.write("twice/model.safetensors.index.json", R"({"weight_map":{"a":"2","b":"1"}})");
    const RepairReport twice = repair(dir / "twice", dir / "once");
    CHECK(mentions(twice.repairs, "'1' also holds 'a', which the index places in '2'"));
    CHECK(twice.saved.tensors == 3);
    dir.write("twice/model.safetensors.index.json", R"({"weight_map":{"b":"1","c":"2"}})");
    CHECK_FAULT(repair(dir / "twice", dir / "no"), Errc::duplicate_name);

    save(dir / "adapter", tensors(), {.stem = "adapter_model"});
    CHECK(repair(dir / "adapter", dir / "repaired").saved.files == Names{"adapter_model.safetensors"});
}

}  // namespace edit_test
