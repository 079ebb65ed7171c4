// Tests that every operation that reads a whole tensor finds a flipped bit in a deflated record.
#include <safemap/diff.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include "base/checksum.hpp"
#include "base/inflate.hpp"
#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "pickle/zip.hpp"
#include "temp_dir.hpp"

#include <cstddef>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace deflated_test {

using namespace safemap;

namespace {

constexpr std::int64_t rows = 3000;

/// Returns bytes that deflate into every kind of block.
std::string weights(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::string out(size, '\0');
    for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>(random() % (i % 4 == 3 ? 3 : 40));
    return out;
}

std::string tensor(std::string_view key) {
    return forge::view(forge::storage("FloatStorage", key, rows), 0, {rows}, {1});
}

/// Returns a file of torch.save that was repacked with deflate.
forge::Zip repacked() {
    forge::Zip zip;
    zip.add_deflated("a/data.pkl",
                     forge::pickle(forge::dict({forge::text("u"), tensor("0"), forge::text("v"), tensor("1")})));
    zip.add_deflated("a/byteorder", "little");
    zip.add_deflated("a/data/0", weights(4 * rows, 1));
    zip.add_deflated("a/data/1", weights(4 * rows, 2));
    zip.add_deflated("a/version", "3\n");
    return zip;
}

/// Returns the bytes of an inflated record, or nothing if the record is damaged.
std::optional<std::string> inflated(const Source& source, const ZipRecord& record) {
    std::string out(record.size, '\0');
    try {
        const std::shared_ptr<const Source> borrowed(&source, [](const Source*) {});
        inflated_source("", borrowed, record.packed, record.size)->read_at(0, std::as_writable_bytes(std::span(out)));
    } catch (const Error&) {
        return std::nullopt;
    }
    return out;
}

std::vector<std::byte> loaded(const Checkpoint& checkpoint, std::string_view name) {
    const TensorView view = checkpoint[name].load();
    return {view.bytes().begin(), view.bytes().end()};
}

}  // namespace

TEST_CASE("verify also reads deflated records, and compares each with its checksum") {
    const TempDir dir;
    const auto zip = repacked();
    std::uint64_t all = 0;
    for (const auto& record : zip.records) all += record.size;
    for (const unsigned threads : {1U, 4U}) {
        VerifyOptions options;
        options.work.threads = threads;
        const auto report = verify(dir.write("m.pt", zip.join()), options);
        CHECK(report.ok());
        CHECK(report.checked_bytes == all);
    }
}

TEST_CASE("a wrong checksum of a deflated record is reported once, with the file and the record") {
    const TempDir dir;
    for (std::size_t i = 0; i < repacked().records.size(); ++i) {
        auto zip = repacked();
        CAPTURE(zip.records[i].name);
        zip.records[i].crc32 ^= 0x100;
        const auto file = dir.write("m.pt", zip.join());
        const auto report = verify(file);
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].code() == Errc::checksum_mismatch);
        CHECK(report.faults[0].path() == file.native());
        CHECK(report.faults[0].message().find(zip.records[i].name) != std::string::npos);
    }
}

TEST_CASE("a deflated record without a checksum is still inflated") {
    const TempDir dir;
    auto zip = repacked();
    zip.records[2].crc32 = 0;
    CHECK(verify(dir.write("m.pt", zip.join())).ok());
    zip.records[2].data[zip.records[2].data.size() / 2] = '\xff';
    zip.records[2].data[zip.records[2].data.size() / 2 + 1] = '\xff';
    const auto report = verify(dir.write("m.pt", zip.join()));
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::inflate_failed);
}

TEST_CASE("no flipped bit of a deflated record gives the saved values without a fault") {
    const TempDir dir;
    const std::string sound = repacked().join();
    const auto sound_file = dir.write("sound.pt", sound);
    const auto sound_model = Checkpoint::open(sound_file);
    const std::string all = digests(sound_model).checkpoint;
    const auto u = loaded(sound_model, "u");

    const auto source = memory_source("sound.pt", SharedBytes{std::as_bytes(std::span(sound)), nullptr});
    ThrowFirst faults;
    const auto zip = ZipDirectory::read(source, faults);
    const unsigned seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
        // Most of the flips are in the weights.
        const std::size_t number = i < 50 ? 2 + random() % 2 : random() % zip.records().size();
        const ZipRecord& record = zip.records()[number];
        const std::uint64_t at = record.packed.offset + random() % record.packed.size;
        const unsigned bit = random() % 8;
        CAPTURE(record.name);
        CAPTURE(at);
        CAPTURE(bit);
        std::string flipped = sound;
        flipped[at] = static_cast<char>(flipped[at] ^ 1 << bit);
        const auto damaged = memory_source("flipped.pt", SharedBytes{std::as_bytes(std::span(flipped)), nullptr});
        // Some bits of deflate have no meaning, such as those that fill the last byte.
        const bool harmless = inflated(*damaged, record) == inflated(*source, record);
        const auto file = dir.write("flipped.pt", flipped);
        CHECK(verify(file).ok() == harmless);
        const auto right_or_refused = [&](auto&& is_right) {
            bool right = false;
            const auto error = error_of([&] { right = is_right(Checkpoint::open(file)); });
            CHECK(right != error.has_value());
            CHECK((right || !harmless));
        };
        right_or_refused([&](const Checkpoint& model) { return loaded(model, "u") == u; });
        right_or_refused([&](const Checkpoint& model) { return diff(sound_model, model).equal(); });
        right_or_refused([&](const Checkpoint& model) { return digests(model).checkpoint == all; });
    }
}

}  // namespace deflated_test
