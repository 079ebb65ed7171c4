// Tests verify() on DCP folders: every byte that a checksum covers is compared, the fault names the tensor, and the
// report says how many bytes are compared with nothing.
#include <safemap/verify.hpp>

#include "base/zstd.hpp"
#include "doctest_safemap.hpp"
#include "forge/dcp.hpp"
#include "forge/zstd.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>

namespace stored_items_test {

using namespace safemap;
using namespace dcp_forge;

namespace {

/// Writes a checkpoint into a folder.
struct Written {
    TempDir folder = TempDir::in_memory();

    explicit Written(const Save& save, const std::map<std::string, std::string>& more = {}) {
        for (const auto& [name, bytes] : save.all()) folder.write(name, bytes);
        for (const auto& [name, bytes] : more) folder.write(name, bytes);
    }
    VerifyReport verify(unsigned threads = 0) const {
        VerifyOptions options;
        options.work.threads = threads;
        return safemap::verify(folder.path(), options);
    }
};

enum class Kind : std::uint8_t { stored, deflated, zstd };

Save one_of(Kind kind, const std::string& elements) {
    Save save;
    Layout layout = contiguous({elements.size()});
    layout.deflated = kind == Kind::deflated;
    std::string item = tensor_item(Dtype::u8, {elements.size()}, elements, layout);
    if (kind == Kind::zstd) item = forge::zstd_frame(item);
    Entry entry{.name = "layer.w", .dtype = "uint8", .shape = {static_cast<std::int64_t>(elements.size())}};
    entry.chunks.push_back({{0}, entry.shape, save.put("__0_0.distcp", item)});
    if (kind == Kind::zstd) entry.chunks[0].item.transforms = {"stream.zstd/1"};
    save.metadata.entries.push_back(entry);
    save.add_object("step", forge::integer(3));
    return save;
}

std::string compressible(std::size_t size) {
    std::mt19937 random(1);
    std::string out(size, '\0');
    for (char& byte : out) byte = static_cast<char>('a' + random() % 3);
    return out;
}

}  // namespace

TEST_CASE("a bit of a tensor that is flipped is found, whatever the item is stored as") {
    for (const Kind kind : {Kind::stored, Kind::deflated, Kind::zstd}) {
        if (kind == Kind::zstd && !has_zstd()) continue;
        const Save good = one_of(kind, compressible(40'000));
        CHECK(Written(good).verify().ok());
        std::mt19937 random(2);
        for (int round = 0; round < 40; ++round) {
            Save changed = good;
            const std::string elements = compressible(40'000);
            std::string& file = changed.files["__0_0.distcp"];
            const std::size_t at = 1000 + random() % (std::min<std::size_t>(file.size(), 35'000) - 2000);
            file[at] = static_cast<char>(static_cast<unsigned>(file[at]) ^ 1U << random() % 8);
            const VerifyReport report = Written(changed).verify();
            REQUIRE(report.faults.size() == 1);
            INFO(std::string(report.faults[0].what()));
            CHECK((report.faults[0].code() == Errc::checksum_mismatch ||
                   report.faults[0].code() == Errc::inflate_failed));
            CHECK(report.faults[0].tensor() == "layer.w");
            CHECK(std::filesystem::path(report.faults[0].path()).filename() == "__0_0.distcp");
        }
    }
}

TEST_CASE("bytes of the files are either compared or noted") {
    const Save save = one_of(Kind::stored, compressible(5000));
    const VerifyReport report = Written(save).verify();
    const std::string& file = save.files.at("__0_0.distcp");
    CHECK(report.checked_bytes > 5000);
    CHECK(report.checked_bytes < file.size());
    const std::string text = std::to_string(file.size() - report.checked_bytes) + " bytes around the records";
    const std::string metadata = std::to_string(save.metadata.pickle().size()) + " bytes of metadata";
    CHECK(std::any_of(report.notes.begin(), report.notes.end(), [&](const std::string& note) {
        return note.find(text) != note.npos && note.find(metadata) != note.npos;
    }));
}

TEST_CASE("faults of thousands of items are in the order of the files, with any number of threads") {
    Save save;
    Entry entry{.name = "w", .dtype = "uint8", .shape = {3000}};
    std::vector<std::int64_t> broken;
    for (std::int64_t i = 0; i < 3000; ++i) {
        const std::string file = "__" + std::to_string(i / 1500) + "_0.distcp";
        entry.chunks.push_back({{i}, {1}, save.put(file, tensor_item(Dtype::u8, {1}, "x"))});
    }
    entry.path = std::vector<Step>{"w"};
    for (const std::size_t i : {5U, 1023U, 1024U, 1499U, 1500U, 2999U}) {
        const Item& item = entry.chunks[i].item;
        std::string& file = save.files[item.file];
        const std::size_t at = file.find("data/0", static_cast<std::size_t>(item.offset));
        file[file.find('x', at)] = 'y';
        broken.push_back(item.offset);
    }
    save.metadata.entries.push_back(entry);
    const Written written(save);
    for (const unsigned threads : {1U, 4U}) {
        const VerifyReport report = written.verify(threads);
        REQUIRE(report.faults.size() == broken.size());
        for (std::size_t i = 0; i < broken.size(); ++i) {
            CHECK(report.faults[i].code() == Errc::checksum_mismatch);
            CHECK(std::filesystem::path(report.faults[i].path()).filename() ==
                  (i < 4 ? "__0_0.distcp" : "__1_0.distcp"));
        }
    }
}

TEST_CASE("a fault of opening and one of the bytes are both reported, each once") {
    Save save = one_of(Kind::stored, compressible(5000));
    Entry bad{.name = "bad", .dtype = "uint8", .shape = {4}};
    bad.chunks.push_back({{0}, {4}, save.put("__0_0.distcp", "no zip at all")});
    save.metadata.entries.push_back(bad);
    std::string& file = save.files["__0_0.distcp"];
    file[1000] = static_cast<char>(file[1000] ^ 1);
    const VerifyReport report = Written(save).verify();
    REQUIRE(report.faults.size() == 2);
    CHECK(report.faults[0].tensor() == "bad");
    CHECK(report.faults[1].tensor() == "layer.w");
}

TEST_CASE("copies of ranks that differ are noted, and a common.pt that is damaged is a fault") {
    std::map<std::string, std::string> files;
    for (int r = 0; r < 2; ++r) {
        Save save;
        const std::string file = "__" + std::to_string(r) + "_0.distcp";
        Entry entry{.name = "w", .dtype = "uint8", .shape = {4}};
        entry.chunks.push_back({{0}, {4}, save.put(file, tensor_item(Dtype::u8, {4}, r == 0 ? "same" : "othr"))});
        save.metadata.entries.push_back(entry);
        files[file] = save.files[file];
        files["__" + std::to_string(r) + ".metadata"] = save.metadata.pickle();
    }
    const TempDir folder = TempDir::in_memory();
    for (const auto& [name, bytes] : files) folder.write(name, bytes);
    VerifyReport report = verify(folder.path());
    CHECK(report.ok());
    CHECK(std::any_of(report.notes.begin(), report.notes.end(), [](const std::string& note) {
        return note.find("w should be the same in all ranks") != note.npos && note.find("__1_0.distcp") != note.npos;
    }));

    std::string common = forge::archive(
        forge::dict({forge::text("w"), forge::view(forge::storage("ByteStorage", "0", 500), 0, {500}, {1})}),
        {{"0", std::string(500, 'c')}});
    common[common.find("ccccc") + 100] = 'd';
    report = Written(one_of(Kind::stored, compressible(100)), {{"common.pt", common}}).verify();
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::checksum_mismatch);
    CHECK(std::filesystem::path(report.faults[0].path()).filename() == "common.pt");
}

}  // namespace stored_items_test
