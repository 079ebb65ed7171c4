// Tests zips that are parts of a file: their records are at the places in the file, nothing outside of the part is
// read, and what is read through a reader of the caller is read there.
#include "doctest_safemap.hpp"
#include "forge/zip.hpp"
#include "pickle/zip.hpp"
#include "torch/fixtures.hpp"

#include <random>
#include <string>

namespace zip_part_test {

using namespace safemap;

namespace {

/// Reads through to a source, and fails outside of one part of it.
struct Fenced final : Source {
    std::shared_ptr<const Source> source;
    Extent part;

    const std::string& name() const noexcept override { return source->name(); }
    std::uint64_t size() const noexcept override { return source->size(); }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        REQUIRE(offset >= part.offset);
        REQUIRE(offset + into.size() <= part.end());
        source->read_at(offset, into);
    }
};

forge::Zip random_zip(std::mt19937& random) {
    forge::Zip zip;
    zip.zip64_end = random() % 2 == 0;
    zip.comment = std::string(random() % 3 == 0 ? random() % 20 : 0, 'c');
    for (std::size_t i = random() % 6; i > 0; --i) {
        const std::string name = "a/" + std::to_string(i);
        const std::string data(random() % 300, static_cast<char>('a' + i));
        if (random() % 3 == 0) zip.add_deflated(name, data);
        else zip.add(name, data);
    }
    return zip;
}

std::string data_of(const ZipDirectory& zip, const ZipRecord& record) {
    const RecordData data = zip.open(record);
    std::string out(data.extent.size, '\0');
    data.source->read_at(data.extent.offset, std::as_writable_bytes(std::span(out)));
    return out;
}

}  // namespace

TEST_CASE("a zip in the middle of other zips has the records that it has alone") {
    std::mt19937 random(1);
    for (int round = 0; round < 400; ++round) {
        const std::string alone = random_zip(random).join();
        const std::string before = random_zip(random).join() + std::string(random() % 100, 'x');
        const std::string after = random() % 2 == 0 ? random_zip(random).join() : "";
        Fenced fenced;
        fenced.source = fixtures::source(before + alone + after);
        fenced.part = {before.size(), alone.size()};
        ThrowFirst faults;
        const ZipDirectory whole = ZipDirectory::read(fixtures::source(alone), faults);
        const ZipDirectory part = ZipDirectory::read(fenced.source, fenced.part, fenced, faults);
        REQUIRE(part.records().size() == whole.records().size());
        CHECK(part.trailing() == 0);
        CHECK(part.preceding() == 0);
        for (std::size_t i = 0; i < whole.records().size(); ++i) {
            CHECK(part.records()[i].name == whole.records()[i].name);
            CHECK(part.records()[i].packed.offset == before.size() + whole.records()[i].packed.offset);
            CHECK(data_of(part, part.records()[i]) == data_of(whole, whole.records()[i]));
        }
    }
}

TEST_CASE("every change of one byte of a part gives the fault that it gives alone") {
    std::mt19937 random(2);
    const std::string whole = [] {
        forge::Zip zip;
        zip.add("a/data.pkl", "pickle");
        zip.add_deflated("a/data/0", std::string(100, 'd'));
        return zip.join();
    }();
    for (int round = 0; round < 4000; ++round) {
        std::string changed = whole;
        for (int changes = 1 + round % 2; changes > 0; --changes)
            changed[random() % changed.size()] = static_cast<char>(random());
        Fenced fenced;
        fenced.source = fixtures::source("before" + changed + "PK\5\6after");
        fenced.part = {6, changed.size()};
        const auto code_of = [](auto&& read) {
            const auto error = error_of(read);
            return error ? std::optional(error->code()) : std::nullopt;
        };
        const auto part = code_of([&] {
            ThrowFirst faults;
            ZipDirectory::read(fenced.source, fenced.part, fenced, faults);
        });
        const auto alone = code_of([&] {
            ThrowFirst faults;
            ZipDirectory::read(fixtures::source(changed), faults);
        });
        CHECK(part == alone);
    }
}

}  // namespace zip_part_test
