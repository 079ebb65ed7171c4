// Tests the digest of the structure document, and that a damaged digest, or its key or subject, is always reported.
#include <safemap/advanced/edit.hpp>
#include <safemap/advanced/shard_writer.hpp>
#include <safemap/advanced/structure.hpp>
#include <safemap/save.hpp>
#include <safemap/verify.hpp>

#include "base/checksum.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "inspect.hpp"
#include "safetensors/digests.hpp"
#include "soak.hpp"
#include "state/structure.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>

namespace structure_digest_test {

using namespace safemap;
using namespace samples;

namespace {

const std::string list_key(safetensors::digests_key);
const std::string identity_key(safetensors::checkpoint_digest_key);
const std::string document_key(state::structure_key);
const std::string digest_key(safetensors::structure_digest_key);

void put(const fs::path& file, std::string_view bytes) { std::ofstream(file, std::ios::binary) << bytes; }

std::string xxh3_of(std::string_view text) { return hex(xxh3(std::as_bytes(std::span(text)))); }

std::string escaped(std::string_view text) {
    std::string json;
    for (const char c : text) json += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return json;
}

/// Writes a nested state without digests: step, lr, a tied tensor, and a text of `padding` bytes.
fs::path nested(const TempDir& dir, std::size_t padding = 0) {
    const std::string document = R"({"v":1,"root":{"model":{"w":["T"],"b":["T"],"head":["@","model/w"]},"step":1000,)"
                                 R"("lr":0.001,"log":")" +
                                 std::string(padding, 'x') + "\"}}";
    const std::string header = R"({"__metadata__":{"model/head":"model/w","safemap.structure":")" + escaped(document) +
                               R"("},"model/b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                               R"("model/w":{"dtype":"U8","shape":[2,2],"data_offsets":[3,7]}})";
    return dir.write("plain.safetensors", forge::safetensors(header, "abcdefg"));
}

fs::path with_digests(const TempDir& dir, const std::string& out = "m.safetensors", std::size_t padding = 0) {
    const Checkpoint source = Checkpoint::open(nested(dir, padding));
    save(dir / out, source, {.max_shard_size = 4, .metadata = {{"who", "me"}}, .checksums = true, .overwrite = true});
    return dir / out;
}

/// Replaces every occurrence of `from` by `to`, which has the same length.
void replace_in(const fs::path& file, const std::string& from, const std::string& to) {
    REQUIRE(from.size() == to.size());
    std::string bytes = TempDir::read(file);
    std::size_t found = 0;
    for (std::size_t at = bytes.find(from); at != bytes.npos; at = bytes.find(from, at + 1), ++found)
        bytes.replace(at, from.size(), to);
    REQUIRE(found > 0);
    put(file, bytes);
}

void check_fault(const fs::path& path, Errc code) {
    const VerifyReport report = verify(path);
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == code);
    CHECK_FALSE(report.faults[0].path().empty());
}

}  // namespace

TEST_CASE("the structure document has a digest, wherever it is stored") {
    const TempDir dir;
    const fs::path one = with_digests(dir);
    const auto metadata = metadata_of(one);
    CHECK(metadata.at(digest_key) == xxh3_of(metadata.at(document_key)));
    const Checkpoint opened = Checkpoint::open(one);
    for (const auto& [key, value] : opened.metadata()) CHECK(key != digest_key);  // it belongs to the tree now
    // A large document is a tensor, whose digest is that of the document.
    const fs::path apart = with_digests(dir, "apart.safetensors", state::longest_inline_structure);
    const auto tensors = read_file(apart);
    REQUIRE(tensors.contains("~structure"));
    CHECK(metadata_of(apart).at(digest_key) == hex(xxh3(tensors.at("~structure").bytes)));
    // For shards, the digest is in the index, and in no shard.
    const fs::path shards = with_digests(dir, "shards");
    CHECK(TempDir::read(shards / "model.safetensors.index.json").find(metadata.at(digest_key)) != std::string::npos);
    for (const auto& name : names_in(shards))
        if (name.ends_with(".safetensors")) CHECK_FALSE(metadata_of(shards / name).contains(digest_key));
    for (const auto& path : {one, apart, shards}) {
        CAPTURE(path);
        const VerifyReport report = verify(path);
        CHECK(report.ok());
        CHECK(report.notes.empty());
    }
    // Without checksums there is no digest, even if the source has one.
    save_everywhere(dir / "without.safetensors", opened);
    CHECK_FALSE(metadata_of(dir / "without.safetensors").contains(digest_key));
    const Checkpoint without = Checkpoint::open(dir / "without.safetensors");
    CHECK(without.tree() != nullptr);
}

TEST_CASE("a changed number or key of the document is a fault, and the tree is missing") {
    const TempDir dir = TempDir::in_memory();
    for (const auto& change :
         std::vector<std::pair<std::string, std::string>>{{"1000", "9000"}, {"0.001", "0.002"}, {"step", "stop"}})
        for (const char* const out : {"m.safetensors", "shards", "apart.safetensors"}) {
            CAPTURE(change.first);
            CAPTURE(out);
            const bool apart = std::string_view(out) == "apart.safetensors";
            const fs::path path = with_digests(dir, out, apart ? state::longest_inline_structure : 0);
            const fs::path file = fs::is_directory(path) ? path / "model.safetensors.index.json" : path;
            replace_in(file, change.first, change.second);
            CHECK_FAULT(Checkpoint::open(path), Errc::checksum_mismatch);
            CHECK_FALSE(verify(path).ok());
            const Checkpoint lenient = Checkpoint::open(path, {.policy = Policy::lenient});
            CHECK(lenient.tree() == nullptr);
            CHECK(lenient.size() == 2);
            CHECK(has_note(lenient, "is damaged"));
            const VerifyReport report = verify(path, {.open = {.policy = Policy::lenient}});
            REQUIRE_FALSE(report.ok());
            CHECK(report.faults[0].code() == Errc::checksum_mismatch);
        }
}

TEST_CASE("a document without a digest is read, with a note if there are other digests") {
    const TempDir dir;
    CHECK(verify(nested(dir)).notes.empty());
    const fs::path file = with_digests(dir);
    replace_in(file, digest_key, "safemap.structure_xxh3_129");
    const VerifyReport report = verify(file);
    CHECK(report.ok());
    CHECK(has_note(report, "the structure document has no digest"));
}

TEST_CASE("a digest whose subject is missing is a fault") {
    const TempDir dir;
    const fs::path file = with_digests(dir);
    SUBCASE("of the document") {
        replace_in(file, '"' + document_key + '"', "\"safemap.structurf\"");
        check_fault(file, Errc::header_bad_metadata);
        CHECK_OK(Checkpoint::open(file));
    }
    SUBCASE("of the checkpoint, without the list") {
        replace_in(file, '"' + list_key + '"', "\"safemap.xxh3_129\"");
        check_fault(file, Errc::header_bad_metadata);
    }
    SUBCASE("of the checkpoint, where one shard has no list") {
        const fs::path shards = with_digests(dir, "shards");
        replace_in(shards / "model-00001-of-00002.safetensors", '"' + list_key + '"', "\"safemap.xxh3_129\"");
        check_fault(shards, Errc::header_bad_metadata);
    }
    SUBCASE("of the checkpoint, where the list lacks a tensor") {
        std::string text = metadata_of(file).at(list_key);
        const std::string shorter = text.substr(0, text.find(',')) + '}';
        replace_in(file, escaped(text), escaped(shorter) + std::string(text.size() - shorter.size() + 4, ' '));
        check_fault(file, Errc::header_bad_metadata);
    }
}

TEST_CASE("digests of tensors without a digest of the checkpoint are noted") {
    const TempDir dir;
    const fs::path file = with_digests(dir);
    replace_in(file, identity_key, "safemap.checkpoint_xxh3_129");
    const VerifyReport report = verify(file);
    CHECK(report.ok());
    CHECK(has_note(report, "no digest of the checkpoint"));
    // An index that has lost all its metadata.
    const fs::path shards = with_digests(dir, "shards");
    replace_in(shards / "model.safetensors.index.json", "\"metadata\"", "\"metadatb\"");
    CHECK(has_note(verify(shards), "no digest of the checkpoint"));
}

TEST_CASE("tensors that the document does not name are noted") {
    const TempDir dir;
    const std::string header =
        R"({"__metadata__":{"safemap.structure":"{\"v\":1,\"root\":{\"w\":[\"T\"],\"n\":1}}"},)"
        R"("u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"v":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
        R"("w":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
    const fs::path file = dir.write("m.safetensors", forge::safetensors(header, "abc"));
    const std::string note = "the structure document does not name 2 tensors; the first is 'u'";
    const Checkpoint opened = Checkpoint::open(file);
    CHECK(opened.notes() == std::vector<std::string>{note});
    const VerifyReport report = verify(file);
    CHECK(report.ok());
    CHECK(report.notes == std::vector<std::string>{note});
}

TEST_CASE("an edit, a ShardWriter and another save keep the digest of the document correct") {
    const TempDir dir;
    const fs::path file = with_digests(dir);
    const std::string before = metadata_of(file).at(digest_key);
    CHECK_OK(edit(file, {.rename = {{"w", "kernel"}}}));
    const auto edited = metadata_of(file);
    CHECK(edited.at(digest_key) != before);
    CHECK(edited.at(digest_key) == xxh3_of(edited.at(document_key)));
    CHECK(verify(file).ok());
    CHECK_FAULT(edit(file, {.unset = {digest_key}}), Errc::invalid_argument);
    CHECK_FAULT(edit(file, {.set = {{digest_key, "x"}}}), Errc::invalid_argument);

    const Checkpoint source = Checkpoint::open(file);
    const SaveOptions options{.metadata = {{digest_key, "of something else"}, {document_key, structure_of(source)}},
                              .checksums = true};
    std::vector<Declaration> declared;
    for (const LazyTensor& tensor : source) declared.push_back({tensor.name(), tensor.dtype(), tensor.shape()});
    ShardWriter writer(dir / "written.safetensors", declared, options);
    for (const LazyTensor& tensor : source) writer.write(tensor.name(), tensor);
    writer.commit();
    const auto written = metadata_of(dir / "written.safetensors");
    CHECK(written.at(digest_key) == xxh3_of(written.at(document_key)));
    CHECK(verify(dir / "written.safetensors").ok());

    // A repair does not compare digests; it drops or recomputes them.
    CHECK_OK(repair(file, dir / "repaired.safetensors"));
    CHECK_FALSE(metadata_of(dir / "repaired.safetensors").contains(digest_key));
    CHECK_OK(repair(file, dir / "again.safetensors", {.checksums = true}));
    CHECK(metadata_of(dir / "again.safetensors").at(digest_key) == edited.at(digest_key));
    CHECK(verify(dir / "again.safetensors").ok());
}

namespace {

/// Flips one bit in each byte of `file` from `begin` to `end`. Checks that verify() reports a fault or a note for each,
/// except for the bytes in `uncovered`.
void flip(const fs::path& checkpoint, const fs::path& file, std::size_t begin, std::size_t end,
          const std::function<bool(std::size_t)>& uncovered) {
    const std::string sound = TempDir::read(file);
    const unsigned seed = soak::seed(274);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (std::size_t at = begin + soak::stride(2) - 1; at < end; at += soak::stride(2)) {
        if (uncovered(at)) continue;
        std::string damaged = sound;
        const unsigned bit = random() % 8;
        damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
        put(file, damaged);
        const VerifyReport report = verify(checkpoint, {.work = {.threads = 1}});
        if (!report.ok() || !report.notes.empty()) continue;
        CAPTURE(bit);
        FAIL_CHECK("silent at " << at << ": ..." << damaged.substr(at < 30 ? 0 : at - 30, 60) << "...");
    }
    put(file, sound);
}

/// Returns a function that is true for offsets inside one of the texts.
std::function<bool(std::size_t)> within(const std::string& bytes, const std::vector<std::string>& texts) {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const std::string& text : texts) {
        const std::size_t at = bytes.find(text);
        REQUIRE(at != bytes.npos);
        ranges.emplace_back(at, at + text.size());
    }
    return [ranges](std::size_t at) {
        return std::any_of(ranges.begin(), ranges.end(),
                           [at](const auto& range) { return at >= range.first && at < range.second; });
    };
}

}  // namespace

TEST_CASE("every flipped bit before the data gives a fault or a note, except in the caller's metadata") {
    const TempDir dir = TempDir::in_memory();
    const fs::path file = with_digests(dir);
    const std::string bytes = TempDir::read(file);
    flip(file, file, 0, bytes.size() - 7,
         within(bytes, {R"("format":"pt")", R"("who":"me")", R"("safemap.root":"model")"}));

    const fs::path shards = with_digests(dir, "shards");
    const fs::path index = shards / "model.safetensors.index.json";
    const std::string text = TempDir::read(index);
    flip(shards, index, 0, text.size(),
         within(text, {R"("total_size")", R"("who": "me")", R"("safemap.root": "model")"}));
    const fs::path shard = shards / "model-00001-of-00002.safetensors";
    const std::string first = TempDir::read(shard);
    flip(shards, shard, 0, first.size(), within(first, {R"("format":"pt")"}));
}

}  // namespace structure_digest_test
