// Tests that every file written by torch reads as torch reads it, and that every broken one is refused for its fault.
#include <safemap/advanced/flatten.hpp>

#include "doctest_safemap.hpp"
#include "fixtures.hpp"
#include "soak.hpp"

#include "base/checksum.hpp"

#include <map>
#include <random>
#include <set>

namespace fixtures_test {

using namespace safemap;

namespace {

/// Returns all names of all tensors, including tied ones.
std::map<std::string, fixtures::Tensor> found_in(const FlatState& flat) {
    std::map<std::string, fixtures::Tensor> found;
    for (const LazyTensor& tensor : flat.tensors) found[tensor.name()] = fixtures::described(tensor);
    for (const AliasGroup& group : flat.aliases) {
        for (const std::string& name : group) {
            found[name] = found[group.front()];
            found[name].name = name;
        }
    }
    return found;
}

bool fits(Errc code, const std::string& word) {
    static const std::map<std::string, std::set<Errc>> codes{
        {"truncated", {Errc::file_truncated, Errc::zip_bad_directory, Errc::pickle_truncated}},
        {"bad-record", {Errc::zip_bad_record, Errc::zip_bad_directory}},
        {"overlap", {Errc::zip_overlap}},
        {"duplicate", {Errc::zip_duplicate}},
        {"missing-record", {Errc::zip_missing_record}},
        {"overflow", {Errc::shape_overflow}},
        {"short-storage", {Errc::storage_too_short}},
        {"bad-tensor", {Errc::bad_tensor}},
        {"bad-opcode", {Errc::pickle_bad_opcode}},
        {"bad-memo", {Errc::pickle_bad_memo}},
        {"bad-stack", {Errc::pickle_bad_stack}},
        {"bad-key", {Errc::pickle_bad_key}},
        {"bad-count", {Errc::pickle_bad_count}},
        {"bad-text", {Errc::pickle_bad_text}},
        {"unsupported", {Errc::zip_unsupported, Errc::pickle_unsupported, Errc::zip_bad_directory}},
    };
    const auto row = codes.find(word);
    return row == codes.end() ? code == Errc::zip_bad_directory : row->second.contains(code);
}

/// True for broken files that open with a note.
bool opens(const fixtures::File& file) {
    const std::set<std::string> words{"unsafe-call", "trailing", "bad-checksum", "nesting", "opaque-root"};
    return words.contains(file.error);
}

}  // namespace

TEST_CASE("every file written by torch has the names, dtypes, shapes and bytes that torch reads") {
    std::size_t files = 0;
    for (const fixtures::File& file : fixtures::table()) {
        if (file.file.starts_with("broken/")) continue;
        CAPTURE(file.file);
        ++files;
        const auto error = error_of([&] {
            const auto archive = fixtures::open(fixtures::content(file.file));
            const auto found = found_in(flatten(archive.tree));
            std::set<std::string> wanted;
            for (const fixtures::Tensor& tensor : file.tensors) {
                CAPTURE(tensor.name);
                wanted.insert(tensor.name);
                const auto here = found.find(tensor.name);
                CHECK(here != found.end());
                if (here == found.end()) continue;
                CHECK(here->second.dtype == tensor.dtype);
                CHECK(here->second.shape == tensor.shape);
                CHECK(here->second.sha256 == tensor.sha256);
            }
            for (const auto& row : found) {
                const auto& name = row.first;  // not a structured binding: Clang 14 cannot capture those
                CAPTURE(name);
                CHECK(wanted.contains(name));
            }
        });
        CHECK_MESSAGE(!error.has_value(), std::string(error ? error->what() : ""));
    }
    CHECK(files == 52);
}

TEST_CASE("ties are the same as in torch") {
    for (const fixtures::File& file : fixtures::table()) {
        if (file.file.starts_with("broken/")) continue;
        CAPTURE(file.file);
        const auto flat = flatten(fixtures::open(fixtures::content(file.file)).tree);
        std::set<std::set<std::string>> found, wanted;
        for (const auto& group : flat.aliases) found.insert({group.begin(), group.end()});
        for (const auto& group : file.aliases) wanted.insert({group.begin(), group.end()});
        CHECK(found == wanted);
    }
}

TEST_CASE("every broken file is refused for its fault, or opens with a note") {
    std::size_t files = 0;
    for (const fixtures::File& file : fixtures::table()) {
        if (!file.file.starts_with("broken/")) continue;
        CAPTURE(file.file);
        CAPTURE(file.error);
        ++files;
        const std::string bytes = fixtures::content(file.file);
        const auto error = error_of([&] { return flatten(fixtures::open(bytes).tree); });
        if (opens(file)) {
            CHECK_MESSAGE(!error.has_value(), std::string(error ? error->what() : ""));
        } else {
            CHECK_MESSAGE(error.has_value(), "it opens");
            if (error) CHECK_MESSAGE(fits(error->code(), file.error), std::string(error->what()));
        }
        CollectFaults faults;
        try {
            static_cast<void>(fixtures::read(bytes, faults));
            CHECK(faults.faults().empty() == opens(file));
        } catch (const Error& thrown) {
            // Without a directory no further faults can be collected.
            CHECK((thrown.code() == Errc::zip_bad_directory || thrown.code() == Errc::file_truncated));
        }
    }
    CHECK(files == 95);
}

TEST_CASE("a fault of a tensor names the tensor, and does not affect others") {
    const std::string bytes = fixtures::content("broken/view_past_end.pt");
    const auto error = error_of([&] { fixtures::open(bytes); });
    REQUIRE(error.has_value());
    CHECK(error->tensor() == "bad");

    CollectFaults faults;
    const auto archive = torch::read_archive(fixtures::source(bytes), faults);
    REQUIRE(faults.faults().size() == 1);
    CHECK(faults.faults()[0].tensor() == "bad");
    const auto flat = flatten(archive.tree);
    REQUIRE(flat.tensors.size() == 1);
    CHECK(flat.tensors[0].name() == "good");
    REQUIRE(flat.skipped.size() == 1);
    CHECK(flat.skipped[0].name == "bad");
}

TEST_CASE("calls that would run code are listed and noted, and not made") {
    for (const auto& row :
         {std::pair{"os_system", "posix.system"}, {"eval", "builtins.eval"}, {"getattr", "builtins.getattr"}}) {
        const auto& file = row.first;  // not a structured binding: Clang 14 cannot capture those
        const auto& call = row.second;
        CAPTURE(file);
        const auto archive = fixtures::open(fixtures::content(std::string("broken/") + file + ".pt"));
        REQUIRE(archive.notes.size() == 1);
        CHECK(archive.notes[0].find(call) != std::string::npos);
        CHECK(archive.notes[0].find("not called") != std::string::npos);
        const auto flat = flatten(archive.tree);
        REQUIRE(flat.tensors.size() == 1);
        CHECK(flat.tensors[0].name() == "weight");
        REQUIRE(flat.skipped.size() == 1);
        CHECK(flat.skipped[0].name == "attack");
        CHECK(flat.skipped[0].type == call);
    }
}

TEST_CASE("bytes after the pickle are noted") {
    const auto archive = fixtures::open(fixtures::content("broken/trailing_bytes.pt"));
    REQUIRE(archive.notes.size() == 1);
    CHECK(archive.notes[0].find("20 bytes") == 0);
}

TEST_CASE("records have the checksums that the zip states") {
    for (const char* file : {"flat.pt", "deflated.pt", "stored_by_python.pt", "aligned_1.pt"}) {
        CAPTURE(file);
        const auto archive = fixtures::open(fixtures::content(file));
        CHECK(archive.records.size() > 4);
        for (const auto& record : archive.records) {
            CAPTURE(record.record);
            std::vector<std::byte> data(record.extent.size);
            record.source->read_at(record.extent.offset, data);
            CHECK(crc32(0, data) == record.crc32);
        }
    }
    const auto archive = fixtures::open(fixtures::content("broken/bad_crc.pt"));
    std::size_t wrong = 0;
    for (const auto& record : archive.records) {
        std::vector<std::byte> data(record.extent.size);
        record.source->read_at(record.extent.offset, data);
        wrong += crc32(0, data) == record.crc32 ? 0 : 1;
    }
    CHECK(wrong == 1);
    CHECK(fixtures::open(fixtures::content("skip_data.pt")).notes.size() == 1);
}

TEST_CASE("a pickle with a wrong checksum is refused, and one without a checksum is not") {
    const std::string whole = fixtures::content("flat.pt");
    const auto with_sum = [&](std::string_view sum) {
        std::string bytes = whole;
        bytes.replace(bytes.find("PK\1\2") + 16, 4, sum);  // data.pkl is the first record
        return bytes;
    };
    CHECK_FAULT(fixtures::open(with_sum("abcd")), Errc::checksum_mismatch);
    const auto archive = fixtures::open(with_sum({"\0\0\0\0", 4}));
    CHECK(flatten(archive.tree).tensors.size() == flatten(fixtures::open(whole).tree).tensors.size());
    CollectFaults faults;
    static_cast<void>(torch::read_archive(fixtures::source(with_sum("abcd")), faults));
    REQUIRE(faults.faults().size() == 1);
    CHECK(faults.faults()[0].code() == Errc::checksum_mismatch);
}

TEST_CASE("every truncation of a valid file is refused") {
    for (const char* file : {"aligned_1.pt", "deflated.pt", "tied.pt"}) {
        CAPTURE(file);
        const std::string whole = fixtures::content(file);
        const std::size_t step = whole.size() > 4000 ? 37 : 1;
        for (std::size_t size = 0; size < whole.size(); size += step) {
            CAPTURE(size);
            const auto error = error_of([&] { fixtures::open(std::string_view(whole).substr(0, size)); });
            CHECK(error.has_value());
        }
    }
}

TEST_CASE("files with random bytes changed are read or refused, and nothing worse") {
    const unsigned seed = soak::seed(20240607);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (const char* file :
         {"aligned_1.pt", "deflated.pt", "containers.pt", "quantized.pt", "sparse.pt", "module_main.pt"}) {
        CAPTURE(file);
        const std::string whole = fixtures::content(file);
        for (int round = 0; round < soak::rounds(1500); ++round) {
            std::string bytes = whole;
            const int changes = 1 + static_cast<int>(random() % 4);
            for (int i = 0; i < changes; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
            CollectFaults faults;
            const auto error = error_of([&] {
                const auto flat =
                    flatten(fixtures::with_tree(torch::read_archive(fixtures::source(bytes), faults)).tree);
                for (const LazyTensor& tensor : flat.tensors) {
                    if (tensor.nbytes() <= 1_MiB) static_cast<void>(error_of([&] { return tensor.load(); }));
                }
            });
            if (error) CHECK(remedy(error->code()) == Remedy::reject_data);
        }
    }
}

}  // namespace fixtures_test
