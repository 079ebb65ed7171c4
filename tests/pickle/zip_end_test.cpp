// Tests end records: bytes after a zip, and files that different programs would read as different zips.
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "inspect.hpp"
#include "pickle/zip.hpp"
#include "torch/fixtures.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace zip_end_test {

using namespace safemap;
using fixtures::data_of;

namespace {

forge::Zip one_record(std::string data, bool zip64 = false) {
    forge::Zip zip;
    zip.zip64_end = zip64;
    zip.add("a/data.pkl", std::move(data));
    return zip;
}

/// Returns the zip after `prefix`, with offsets counted from the beginning of the file.
std::string behind(const std::string& prefix, const forge::Zip& zip, std::uint64_t directory_at) {
    std::string bytes = zip.join();
    bytes.replace(bytes.size() - 6, 4, forge::little(directory_at, 4));
    return prefix + bytes;
}

void check_ambiguous(const std::string& bytes) {
    check_error(error_of([&] { fixtures::zip_of(bytes); }), {Errc::zip_bad_directory},
                {"programs differ in which one they use"});
}

}  // namespace

TEST_CASE("bytes after the zip are ignored with a note, with and without zip64, a comment, and bytes before it") {
    for (const bool zip64 : {false, true}) {
        for (const std::size_t trailing : {0U, 1U, 21U, 22U, 60'000U}) {
            for (const std::string prefix : {"", "xyz"}) {
                for (const std::string comment : {"", "of a zip"}) {
                    auto zip = one_record("right", zip64);
                    zip.prefix = prefix;
                    zip.comment = comment;
                    const auto directory = fixtures::zip_of(zip.join() + std::string(trailing, 'x'));
                    CHECK(data_of(directory, "a/data.pkl") == "right");
                    CHECK(directory.trailing() == trailing);
                }
            }
        }
    }
    CHECK_FAULT(fixtures::zip_of(one_record("far").join() + std::string(70'000, 'x')), Errc::zip_bad_directory);
}

TEST_CASE("a file of torch.save with trailing bytes is read, with a note") {
    const auto archive = fixtures::open(forge::archive(forge::dict({})) + "PK\5\6 and more, of no directory");
    CHECK(only_of(archive.notes).find("bytes after the zip are ignored") != std::string::npos);
}

TEST_CASE("a zip with a truncated end record or comment is refused") {
    auto zip = one_record("right");
    zip.comment = "0123456789";
    const std::string bytes = zip.join();
    for (std::size_t cut = 1; cut < 40; ++cut)
        CHECK_FAULT(fixtures::zip_of(bytes.substr(0, bytes.size() - cut)), Errc::zip_bad_directory);
}

TEST_CASE("two concatenated zips are read as the second; with trailing bytes they are refused") {
    const std::string other = one_record("wrong").join();
    auto zip = one_record("right, and longer");
    zip.prefix = other;
    CHECK(data_of(fixtures::zip_of(zip.join()), "a/data.pkl") == "right, and longer");
    check_ambiguous(zip.join() + "x");
}

TEST_CASE("the end record of a zip stored inside another zip is ignored") {
    for (const bool zip64 : {false, true}) {
        forge::Zip zip = one_record("right", zip64);
        zip.add("a/other.zip", one_record("wrong", zip64).join());
        for (const char* trailing : {"", "x"})
            CHECK(data_of(fixtures::zip_of(zip.join() + trailing), "a/data.pkl") == "right");
    }
}

TEST_CASE("a zip with zip64 records in the comment of another is refused") {
    auto other = one_record("wrong", true);
    auto zip = one_record("right");
    zip.comment = other.join();
    // Its own end record is not used: the zip64 record is.
    const std::size_t end = zip.comment.size() - 22;
    zip.comment.replace(end + 8, 12, std::string(12, '\xff'));
    zip.comment[zip.comment.size() - 2] = 7;
    check_ambiguous(zip.join());
}

TEST_CASE("offsets that are valid both from the beginning of the file and from the beginning of the zip are refused") {
    // miniz, which torch uses, would read the directory of the first zip.
    const forge::Zip first = one_record("wrong");
    const std::string bytes = first.join();
    const std::size_t directory_at = bytes.find("PK\1\2");
    const std::string both = behind(bytes, one_record("right"), directory_at);
    check_ambiguous(both);
    check_ambiguous(both + "x");
}

TEST_CASE("an end record and a zip64 end record that differ are refused") {
    auto zip = one_record("right", true);
    const std::string bytes = zip.join();
    CHECK_OK(fixtures::zip_of(bytes));
    const std::size_t end = bytes.size() - 22;
    for (const std::size_t field : {8U, 12U, 16U}) {  // count, size and offset; the count on this disk is not compared
        auto changed = bytes;
        changed[end + field + (field == 8 ? 2 : 0)] ^= 1;
        check_ambiguous(changed);
    }
    auto saturated = bytes;
    saturated.replace(end + 8, 12, std::string(12, '\xff'));
    CHECK_OK(fixtures::zip_of(saturated));
}

TEST_CASE("two zip64 end records are refused, because programs look for them in two places") {
    auto zip = one_record("right", true);
    std::string bytes = zip.join();
    const std::size_t record = bytes.find("PK\6\6");
    // A second record before the first, where the locator points.
    bytes.insert(record, bytes.substr(record, 56));
    check_ambiguous(bytes);
}

}  // namespace zip_end_test
