// Tests zip directories. From top to bottom: valid archives, comments and names, invalid entries one by one, records
// beyond 4 GiB in a sparse file, many records and how their headers are read.
#include "pickle/zip.hpp"

#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "torch/fixtures.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace zip_test {

using namespace safemap;
using fixtures::data_of;

namespace {

forge::Zip two_records() {
    forge::Zip zip;
    zip.add("a/data.pkl", "pickle");
    zip.add("a/data/0", "0123456789");
    return zip;
}

}  // namespace

TEST_CASE("records are found with and without zip64 end records, comments, and bytes before the zip") {
    for (const bool zip64 : {false, true}) {
        for (const std::size_t prefix : {0U, 1U, 5000U}) {
            for (const std::size_t comment : {0U, 1U, 1000U, 65535U}) {
                CAPTURE(zip64);
                CAPTURE(prefix);
                CAPTURE(comment);
                auto zip = two_records();
                zip.zip64_end = zip64;
                zip.prefix.assign(prefix, 'x');
                zip.comment.assign(comment, 'c');
                const auto directory = fixtures::zip_of(zip.join());
                REQUIRE(directory.records().size() == 2);
                CHECK(directory.records()[0].name == "a/data.pkl");
                CHECK(data_of(directory, "a/data.pkl") == "pickle");
                CHECK(data_of(directory, "a/data/0") == "0123456789");
                CHECK(directory.find("a/data/1") == nullptr);
            }
        }
    }
}

TEST_CASE("a comment that looks like an end record is ignored") {
    auto zip = two_records();
    zip.comment = "PK\5\6 this is none";
    const auto directory = fixtures::zip_of(zip.join());
    CHECK(directory.records().size() == 2);
}

TEST_CASE("records after folder entries are found") {
    forge::Zip zip;
    zip.add("a/", "");
    zip.add("a/data/0", "zero");
    zip.add("a/data/", "");
    zip.add("a/data/1", "one");
    const auto directory = fixtures::zip_of(zip.join());
    CHECK(directory.find("a/") == nullptr);
    CHECK(directory.find("a/data/") == nullptr);
    REQUIRE(directory.find("a/data/0") == &directory.records()[0]);
    REQUIRE(directory.find("a/data/1") == &directory.records()[1]);
    CHECK(directory.records()[1].name == "a/data/1");
    CHECK(directory.records()[1].size == 3);
}

TEST_CASE("a zip in the comment of another is refused, because programs would disagree on it") {
    auto other = two_records();
    other.zip64_end = false;
    auto zip = two_records();
    zip.zip64_end = false;
    zip.comment = other.join();
    // torch would take this one, because the length of its comment is not the number of remaining bytes.
    zip.comment[zip.comment.size() - 2] = 7;
    CHECK_FAULT(fixtures::zip_of(zip.join()), Errc::zip_bad_directory);
}

TEST_CASE("names that differ only in case are refused, because torch takes them for the same") {
    for (const char* name : {"a/DATA.pkl", "A/data.pkl"}) {
        auto zip = two_records();
        zip.add(name, "x");
        CHECK_FAULT(fixtures::zip_of(zip.join()), Errc::zip_duplicate);
    }
    auto zip = two_records();
    zip.add("a/Data2", "x");
    const auto directory = fixtures::zip_of(zip.join());
    CHECK(directory.records().size() == 3);
}

TEST_CASE("names that leave their folder are refused") {
    for (const char* name : {"/a", "../a", "a/../b", "a/..", "..", "a\\b", ""}) {
        CAPTURE(name);
        auto zip = two_records();
        zip.add(name, "x");
        CHECK_FAULT(fixtures::zip_of(zip.join()), Errc::zip_bad_record);
    }
    for (const char* name : {"a/..b", "a/b..", "...", "a/.data/x", "a/."}) {
        CAPTURE(name);
        auto zip = two_records();
        zip.add(name, "x");
        CHECK_OK(fixtures::zip_of(zip.join()));
    }
}

TEST_CASE("entries that contradict themselves or the file are refused") {
    using forge::Zip;
    const auto refused = [](const char* fault, Errc code, void (*inflict)(Zip&)) {
        CAPTURE(fault);
        Zip zip = two_records();
        inflict(zip);
        CHECK_FAULT(fixtures::zip_of(zip.join()), code);
    };
    refused("a different name", Errc::zip_bad_record, [](Zip& zip) { zip.records[1].local_name = "a/data/1"; });
    refused("a different length of the name", Errc::zip_bad_record,
            [](Zip& zip) { zip.records[1].local_name = "a/data/00"; });
    refused("two different sizes", Errc::zip_bad_record, [](Zip& zip) { zip.records[1].size = 11; });
    refused("encryption", Errc::zip_unsupported, [](Zip& zip) { zip.records[1].flags |= 1; });
    refused("an unknown method", Errc::zip_unsupported, [](Zip& zip) { zip.records[1].method = 12; });
    refused("a deflated size that is too large", Errc::zip_bad_record, [](Zip& zip) {
        zip.records[1].method = 8;
        zip.records[1].size = 0x7FFF'FFFF;
    });
    refused("a size that reaches into the directory", Errc::zip_bad_record,
            [](Zip& zip) { zip.records[1].packed = zip.records[1].size = 10 + 16 + 1; });
    refused("a size that reaches into the next record", Errc::zip_overlap,
            [](Zip& zip) { zip.records[0].packed = zip.records[0].size = 6 + 16 + 1; });
    refused("a missing zip64 field", Errc::zip_bad_record,
            [](Zip& zip) { zip.records[1].packed = zip.records[1].size = 0xFFFF'FFFF; });
    refused("a short zip64 field", Errc::zip_bad_record, [](Zip& zip) {
        zip.records[1].packed = zip.records[1].size = 0xFFFF'FFFF;
        zip.records[1].extra = forge::little(1, 2) + forge::little(8, 2) + forge::little(10, 8);
    });
    refused("two records of one name", Errc::zip_duplicate, [](Zip& zip) { zip.add("a/data/0", "x"); });
    refused("a count that is too large", Errc::zip_bad_directory, [](Zip& zip) { zip.count_error = 1; });
    refused("a count that is too small", Errc::zip_bad_directory, [](Zip& zip) { zip.count_error = -1; });
}

TEST_CASE("a zip64 field after others is found") {
    auto zip = two_records();
    zip.records[1].packed = zip.records[1].size = 0xFFFF'FFFF;
    zip.records[1].extra = forge::little(0x5455, 2) + forge::little(3, 2) + "abc" + forge::little(1, 2) +
                           forge::little(16, 2) + forge::little(10, 8) + forge::little(10, 8);
    CHECK(data_of(fixtures::zip_of(zip.join()), "a/data/0") == "0123456789");
}

TEST_CASE("faults are collected, and the valid records are kept") {
    auto zip = two_records();
    zip.add("../out", "x");
    zip.add("a/data/0", "again");
    zip.add("a/data/1", "good");
    zip.records[0].method = 99;
    CollectFaults faults;
    const auto directory = ZipDirectory::read(fixtures::source(zip.join()), faults);
    CHECK(faults.faults().size() == 3);
    REQUIRE(directory.records().size() == 2);
    CHECK(directory.records()[1].name == "a/data/1");
}

TEST_CASE("folder entries are not records") {
    auto zip = two_records();
    zip.add("a/", "");
    const auto directory = fixtures::zip_of(zip.join());
    CHECK(directory.records().size() == 2);
}

TEST_CASE("records beyond 4 GiB are found by their zip64 fields") {
    // A sparse file: bytes are written only for headers, and the rest are zeros.
    constexpr std::uint64_t big = 5'000'000'000;
    std::map<std::uint64_t, std::string> parts;
    const auto header = [](const std::string& name) {
        return "PK\3\4" + forge::little(0, 2) + forge::little(0x0808, 2) + forge::little(0, 18) +
               forge::little(name.size(), 2) + forge::little(0, 2) + name;
    };
    const auto entry = [](const std::string& name, std::uint64_t size, std::uint64_t at) {
        std::string extra;
        if (size >= 0xFFFF'FFFF) extra += forge::little(size, 8) + forge::little(size, 8);
        if (at >= 0xFFFF'FFFF) extra += forge::little(at, 8);
        if (!extra.empty()) extra = forge::little(1, 2) + forge::little(extra.size(), 2) + extra;
        const auto short_size = forge::little(std::min<std::uint64_t>(size, 0xFFFF'FFFF), 4);
        return "PK\1\2" + forge::little(0, 4) + forge::little(0x0808, 2) + forge::little(0, 10) + short_size +
               short_size + forge::little(name.size(), 2) + forge::little(extra.size(), 2) + forge::little(0, 10) +
               forge::little(std::min<std::uint64_t>(at, 0xFFFF'FFFF), 4) + name + extra;
    };
    parts[0] = header("a/data/0");
    const std::uint64_t second = parts[0].size() + big;
    parts[second] = header("a/data/1") + "tail";
    const std::uint64_t directory_at = second + parts[second].size();
    const std::string directory = entry("a/data/0", big, 0) + entry("a/data/1", 4, second);
    std::string end = directory;
    end += "PK\6\6" + forge::little(44, 8) + forge::little(0, 12) + forge::little(2, 8) + forge::little(2, 8) +
           forge::little(directory.size(), 8) + forge::little(directory_at, 8);
    end += "PK\6\7" + forge::little(0, 4) + forge::little(directory_at + directory.size(), 8) + forge::little(1, 4);
    end += "PK\5\6" + forge::little(0, 4) + forge::little(0xFFFF, 2) + forge::little(0xFFFF, 2) +
           forge::little(0xFFFF'FFFF, 4) + forge::little(0xFFFF'FFFF, 4) + forge::little(0, 2);
    parts[directory_at] = end;

    std::uint64_t bytes_read = 0;
    const auto source =
        callback_source("sparse.pt", directory_at + end.size(), [&](std::uint64_t offset, std::span<std::byte> into) {
            bytes_read += into.size();
            std::fill(into.begin(), into.end(), std::byte{0});
            for (const auto& [at, part] : parts) {
                for (std::size_t i = 0; i < part.size(); ++i) {
                    if (at + i >= offset && at + i - offset < into.size())
                        into[at + i - offset] = static_cast<std::byte>(part[i]);
                }
            }
        });
    ThrowFirst faults;
    const auto zip = ZipDirectory::read(source, faults);
    REQUIRE(zip.records().size() == 2);
    CHECK(zip.records()[0].packed == Extent{38, big});
    CHECK(zip.records()[1].packed == Extent{second + 38, 4});
    CHECK(data_of(zip, "a/data/1") == "tail");
    CHECK(bytes_read < 100'000);
}

TEST_CASE("ten thousand records are read in one pass") {
    forge::Zip zip;
    for (int i = 0; i < 10'000; ++i) zip.add("a/data/" + std::to_string(i), std::to_string(i));
    const auto directory = fixtures::zip_of(zip.join());
    CHECK(directory.records().size() == 10'000);
    CHECK(data_of(directory, "a/data/9999") == "9999");
}

namespace {

/// Returns the ranges read for the local headers, after the end records and the central directory.
std::vector<Extent> header_reads(const std::string& zip, std::size_t records) {
    std::vector<Extent> reads;
    const auto source = callback_source("a.pt", zip.size(), [&](std::uint64_t offset, std::span<std::byte> into) {
        reads.push_back({offset, into.size()});
        std::memcpy(into.data(), zip.data() + offset, into.size());
    });
    ThrowFirst faults;
    const auto directory = ZipDirectory::read(source, faults);
    REQUIRE(directory.records().size() == records);
    std::erase_if(reads, [end = zip.find("PK\1\2")](Extent read) { return read.offset + read.size > end; });
    return reads;
}

}  // namespace

TEST_CASE("headers that are close together are read at once, without large payloads between them") {
    forge::Zip zip;
    for (int i = 0; i < 200; ++i) zip.add("a/data/" + std::to_string(i), std::string(64, 'x'));
    zip.add("a/data/large", std::string(100'000, 'x'));
    for (int i = 300; i < 400; ++i) zip.add("a/data/" + std::to_string(i), std::string(64, 'x'));
    const auto reads = header_reads(zip.join(), 301);
    REQUIRE(reads.size() == 2);
    CHECK(reads[0].size + reads[1].size < 301 * 128);
    CHECK(reads[1].offset > reads[0].offset + reads[0].size + 99'000);
}

TEST_CASE("many headers that are close together are read in steps") {
    forge::Zip zip;
    for (int i = 0; i < 1000; ++i) zip.add("a/data/" + std::to_string(i), std::string(1000, 'x'));
    const auto reads = header_reads(zip.join(), 1000);
    CHECK(reads.size() >= 1'000'000 / 65'536);
    CHECK(reads.size() < 20);
    for (const Extent read : reads) CHECK(read.size <= 65'536);
}

TEST_CASE("headers are found in any order of the directory") {
    forge::Zip zip;
    for (int i = 0; i < 50; ++i) zip.add("a/data/" + std::to_string(i), std::to_string(i));
    zip.zip64_end = false;
    std::string bytes = zip.join();
    const std::size_t begin = bytes.find("PK\1\2");
    const std::size_t end = bytes.find("PK\5\6");
    std::vector<std::string> entries;
    for (std::size_t at = begin; at < end;) {
        const std::size_t next = std::min(bytes.find("PK\1\2", at + 4), end);
        entries.push_back(bytes.substr(at, next - at));
        at = next;
    }
    REQUIRE(entries.size() == 50);
    std::reverse(entries.begin(), entries.end());
    std::swap(entries[7], entries[30]);
    std::string directory;
    for (const std::string& entry : entries) directory += entry;
    bytes.replace(begin, end - begin, directory);
    const auto read_back = fixtures::zip_of(bytes);
    CHECK(read_back.records().front().name == "a/data/49");
    for (int i = 0; i < 50; ++i) CHECK(data_of(read_back, "a/data/" + std::to_string(i)) == std::to_string(i));
}

}  // namespace zip_test
