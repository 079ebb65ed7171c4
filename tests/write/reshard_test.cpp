// Tests files of ranks (Hugging Face shards). From top to bottom: the bytes that are written, what each rank gets,
// random tensors from N ranks to M and back, digests, what a set of ranks replaces and is replaced by, folders of
// optimizers, saves that are killed, and what is refused.
#include <safemap/advanced/shard_writer.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include "base/json.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "forge/hf_shards.hpp"
#include "inspect.hpp"
#include "safetensors/digests.hpp"
#include "soak.hpp"
#include "write/killed_save.hpp"
#include "write/samples.hpp"

#include <algorithm>
#include <fstream>
#include <random>
#include <set>

namespace reshard_test {

using namespace safemap;
using namespace samples;
using hf_forge::shard_name;

namespace {

using Names = std::vector<std::string>;

std::vector<std::byte> bytes_of(const LazyTensor& tensor) {
    std::vector<std::byte> value(static_cast<std::size_t>(tensor.nbytes()));
    tensor.read(0, value);
    return value;
}

Names ranks(int count) {
    Names names;
    for (int rank = 1; rank <= count; ++rank) names.push_back(shard_name(rank));
    return names;
}

/// Returns the slices of a dimension as torch.chunk makes them, one by one.
std::vector<std::pair<std::uint64_t, std::uint64_t>> chunks(std::uint64_t size, std::uint64_t count) {
    std::uint64_t each = size / count;
    if (each * count < size) ++each;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> all;
    for (std::uint64_t begin = 0; begin < size; begin += each) all.emplace_back(begin, std::min(size, begin + each));
    return all;
}

void check_equal(const Checkpoint& got, const std::vector<LazyTensor>& wanted) {
    REQUIRE(got.size() == wanted.size());
    for (const LazyTensor& tensor : wanted) {
        CAPTURE(tensor.name());
        const LazyTensor* const found = got.find(tensor.name());
        REQUIRE(found != nullptr);
        CHECK(found->dtype() == tensor.dtype());
        CHECK(found->shape() == tensor.shape());
        CHECK(bytes_of(*found) == bytes_of(tensor));
    }
}

std::vector<LazyTensor> some_tensors() {
    return {tensor("w", Dtype::f32, {7, 3}, 1),           tensor("b", Dtype::bf16, {2}, 2),
            tensor("mask", Dtype::boolean, {5, 2, 2}, 3), tensor("scalar", Dtype::i64, {}, 4),
            tensor("empty", Dtype::f32, {0, 4}, 5),       tensor("packed", Dtype::f4, {4, 6}, 6)};
}

void write(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

}  // namespace

TEST_CASE("two ranks are written as torch writes them, with the shape of the whole") {
    const TempDir dir;
    auto bytes = random_bytes(24, 9);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>('a' + i);
    const auto source = memory_source("m", bytes);
    const std::vector<LazyTensor> tensors = {{"w", stored_run(Dtype::f16, {3, 2}, source, 0)},
                                             {"s", stored_run(Dtype::f32, {}, source, 12)}};
    const SaveReport report = save(dir / "out", tensors, {.metadata = {{"who", "me"}}, .ranks = 2});
    CHECK(report.files == ranks(2));
    CHECK(names_in(dir / "out") == ranks(2));
    const auto file = [](std::string header, const std::string& data) {
        header.resize((header.size() + 7) / 8 * 8, ' ');
        return forge::safetensors(header, data);
    };
    CHECK(TempDir::read(dir / "out" / shard_name(1)) ==
          file(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"s\": {\"saved_offsets\": [], \"global_shape\": []}, )"
               R"(\"w\": {\"saved_offsets\": [0, 0], \"global_shape\": [3, 2]}}","DCP_VERSION":"1.0","format":"pt",)"
               R"("who":"me"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
               R"("w":{"dtype":"F16","shape":[2,2],"data_offsets":[4,12]}})",
               "mnopabcdefgh"));
    CHECK(TempDir::read(dir / "out" / shard_name(2)) ==
          file(R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": [2, 0], )"
               R"(\"global_shape\": [3, 2]}}","DCP_VERSION":"1.0","format":"pt","who":"me"},)"
               R"("w":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}})",
               "ijkl"));
    CHECK(report.tensors == 2);
    CHECK(report.bytes_read == 16);
    CHECK(report.bytes_written ==
          fs::file_size(dir / "out" / shard_name(1)) + fs::file_size(dir / "out" / shard_name(2)));
    REQUIRE(report.layout.files.size() == 2);
    CHECK(report.layout.files[0].tensors == 2);
    CHECK(report.layout.files[1].tensors == 1);
}

TEST_CASE("each rank gets the slices that torch.chunk gives it, and the first what cannot be cut") {
    const TempDir dir = TempDir::in_memory();
    const auto tensors = some_tensors();
    for (std::uint32_t dimension = 0; dimension < 4; ++dimension)
        for (std::uint32_t count = 1; count < 10; ++count) {
            CAPTURE(dimension);
            CAPTURE(count);
            const fs::path out = dir / (std::to_string(dimension) + "_" + std::to_string(count));
            save(out, tensors, {.ranks = count, .rank_dimension = dimension});
            for (std::uint32_t rank = 0; rank < count; ++rank) {
                CAPTURE(rank);
                const fs::path file = out / shard_name(static_cast<int>(rank) + 1);
                const auto stored = fs::exists(file) ? read_file(file) : std::map<std::string, Stored>();
                CHECK(fs::exists(file) == (rank == 0 || !stored.empty()));
                std::size_t expected = 0;
                for (const LazyTensor& whole : tensors) {
                    CAPTURE(whole.name());
                    const bool cut = whole.name() != "packed" && whole.nbytes() > 0 && dimension < whole.shape().size();
                    const auto all = cut ? chunks(whole.shape()[dimension], count)
                                         : std::vector<std::pair<std::uint64_t, std::uint64_t>>(1);
                    const auto found = stored.find(whole.name());
                    REQUIRE((found != stored.end()) == (rank < all.size()));
                    if (rank >= all.size()) continue;
                    ++expected;
                    std::vector<Slice> slices(cut ? dimension + 1 : 0);
                    if (cut)
                        slices.back() = {.start = static_cast<std::int64_t>(all[rank].first),
                                         .stop = static_cast<std::int64_t>(all[rank].second)};
                    const LazyTensor part = whole.slice(slices);
                    CHECK(found->second.shape == part.shape());
                    CHECK(found->second.bytes == bytes_of(part));
                }
                CHECK(stored.size() == expected);
            }
            check_equal(Checkpoint::open(out), tensors);
        }
}

TEST_CASE("random tensors from N ranks to M and back are the same bytes") {
    const unsigned seed = soak::seed(184);
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < soak::rounds(60); ++round) {
        CAPTURE(round);
        const TempDir dir = TempDir::in_memory();
        std::vector<LazyTensor> tensors;
        for (std::size_t t = 0; t < 1 + random() % 6; ++t) {
            constexpr Dtype dtypes[] = {Dtype::u8, Dtype::f8_e4m3, Dtype::bf16, Dtype::i32, Dtype::f64, Dtype::c64};
            const Dtype dtype = dtypes[random() % std::size(dtypes)];
            Shape shape;
            for (std::size_t d = random() % 4; d > 0; --d) shape.push_back(random() % 12);
            const std::string name = "t" + std::to_string(t);
            if (shape.size() == 2 && random() % 3 == 0) {
                tensors.push_back(transposed(name, dtype, shape[0], shape[1], random()));
                continue;
            }
            tensors.push_back(tensor(name, dtype, shape, random()));
        }
        const auto some = [&] { return static_cast<std::uint32_t>(1 + random() % 9); };
        const SaveOptions n{.checksums = random() % 2 == 0, .ranks = some(), .rank_dimension = some() % 3};
        const SaveOptions m{.checksums = random() % 2 == 0, .ranks = some(), .rank_dimension = some() % 3};
        save(dir / "n", tensors, n);
        save(dir / "m", Checkpoint::open(dir / "n"), m);
        save(dir / "again", Checkpoint::open(dir / "m"), n);
        check_equal(Checkpoint::open(dir / "n"), tensors);
        check_equal(Checkpoint::open(dir / "m"), tensors);
        CHECK(contents_of(dir / "again") == contents_of(dir / "n"));
        const Checkpoint through = Checkpoint::open(dir / "m");
        CHECK(through.layout()->world_size == names_in(dir / "m").size());
        CHECK(verify(dir / "m").ok());
        // And to one file, which does not know of ranks.
        save(dir / "one.safetensors", Checkpoint::open(dir / "m"));
        check_equal(Checkpoint::open(dir / "one.safetensors"), tensors);
        CHECK(metadata_of(dir / "one.safetensors") == std::map<std::string, std::string>{{"format", "pt"}});
    }
}

TEST_CASE("casts, ties, a nested state dict and dtypes that only its document names are kept by ranks") {
    const TempDir dir;
    const fs::path data = fs::path(SAFEMAP_TEST_DATA) / "pt";
    for (const char* name : {"train_gpt.pt", "odd_dtypes.pt", "nested.pt", "model_bf16.pt"}) {
        CAPTURE(name);
        const Checkpoint model = Checkpoint::open(data / name);
        save(dir / name, model, {.structure = StructurePolicy::keep, .checksums = true, .ranks = 3});
        const Checkpoint back = Checkpoint::open(dir / name);
        check_equal(back, {model.begin(), model.end()});
        CHECK(back.aliases() == model.aliases());
        CHECK((back.tree() != nullptr) == (model.tree() != nullptr));
        CHECK(digests(back).checkpoint == digests(model).checkpoint);
        const VerifyReport report = verify(dir / name);
        for (const Error& fault : report.faults) FAIL_CHECK(std::string(fault.what()));
        CHECK(report.checked_bytes == report.bytes);
        // Files of other ranks repeat what belongs to each file, and nothing about the whole.
        if (!fs::exists(dir / name / shard_name(2))) continue;  // nothing in it can be cut
        const auto second = metadata_of(dir / name / shard_name(2));
        for (const auto& pair : second)
            CHECK((!pair.first.starts_with("safemap.") || pair.first == safetensors::digests_key));
        // Without ranks, the same checkpoint as from the .pt.
        save(dir / "from_ranks", back, {.overwrite = true});
        check_equal(Checkpoint::open(dir / "from_ranks"), {model.begin(), model.end()});
    }
    const auto tensors = some_tensors();
    save(dir / "cast", tensors, {.dtype = Dtype::f16, .ranks = 3});
    std::vector<LazyTensor> wanted;
    for (const LazyTensor& tensor : tensors)
        wanted.push_back(can_cast(tensor.dtype(), Dtype::f16) ? tensor.cast(Dtype::f16) : tensor);
    check_equal(Checkpoint::open(dir / "cast"), wanted);
}

TEST_CASE("a document that is stored as a tensor is in the file of the first rank") {
    const TempDir dir;
    const std::string text(2 << 20, 'x');
    // A long text makes the document larger than a header may be for its metadata.
    {
        const std::string document = R"({"v":1,"root":{"w":["T"],"text":")" + text + "\"}}";
        const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {6, 2})};
        save(dir / "in.safetensors", tensors, {.metadata = {{"safemap.structure", document}}});
    }
    const Checkpoint model = Checkpoint::open(dir / "in.safetensors");
    REQUIRE(model.tree() != nullptr);
    save(dir / "out", model, {.structure = StructurePolicy::keep, .checksums = true, .ranks = 2});
    CHECK(read_file(dir / "out" / shard_name(1)).contains("~structure"));
    CHECK_FALSE(read_file(dir / "out" / shard_name(2)).contains("~structure"));
    const Checkpoint back = Checkpoint::open(dir / "out");
    CHECK(back.size() == 1);
    CHECK(back.tree() != nullptr);
    CHECK(verify(dir / "out").ok());
}

TEST_CASE("a rank that gets no part of any tensor has no file, except the first") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {2, 2}), tensor("v", Dtype::f32, {3})};
    save(dir / "out", tensors, {.checksums = true, .ranks = 5});
    CHECK(names_in(dir / "out") == ranks(3));
    check_equal(Checkpoint::open(dir / "out"), tensors);
    CHECK(verify(dir / "out").ok());
    save(dir / "none", std::vector<LazyTensor>(), {.checksums = true, .ranks = 2});
    CHECK(names_in(dir / "none") == ranks(1));
    CHECK(Checkpoint::open(dir / "none").size() == 0);
    CHECK(verify(dir / "none").ok());
}

TEST_CASE("a lost file of the last rank is found by the shape of the whole") {
    const TempDir dir;
    save(dir / "out", some_tensors(), {.ranks = 3});
    fs::remove(dir / "out" / shard_name(3));
    CHECK_FAULT(Checkpoint::open(dir / "out"), Errc::not_covered);
    fs::remove(dir / "out" / shard_name(1));
    CHECK_FAULT(Checkpoint::open(dir / "out"), Errc::rank_missing);
}

// Digests.

TEST_CASE("digests are those of the parts in each file, and of the whole checkpoint") {
    const TempDir dir;
    const auto tensors = some_tensors();
    for (const std::uint32_t dimension : {0U, 1U}) {
        CAPTURE(dimension);
        const fs::path out = dir / std::to_string(dimension);
        save(out, tensors, {.dtype = Dtype::f16, .checksums = true, .ranks = 3, .rank_dimension = dimension});
        for (const std::string& name : names_in(out)) {
            std::map<std::string, std::string> listed;
            const auto list = json::parse(metadata_of(out / name).at(std::string(safetensors::digests_key)),
                                          Errc::header_bad_metadata);
            for (const auto& member : *list.object()) listed.emplace(member.key, *member.value.string());
            std::map<std::string, std::string> found;
            for (const auto& [tensor, stored] : read_file(out / name)) found.emplace(tensor, hex(xxh3(stored.bytes)));
            CHECK(listed == found);
        }
        const std::string stored = metadata_of(out / shard_name(1)).at(std::string(safetensors::checkpoint_digest_key));
        CHECK(stored == digests(Checkpoint::open(out)).checkpoint);
        CHECK_FALSE(metadata_of(out / shard_name(2)).contains(std::string(safetensors::checkpoint_digest_key)));
        const VerifyReport report = verify(out);
        CHECK(report.ok());
        CHECK(report.checked_bytes == report.bytes);
    }
    save(dir / "whole.safetensors", tensors, {.dtype = Dtype::f16, .checksums = true});
    CHECK(digests(Checkpoint::open(dir / "0")).checkpoint ==
          digests(Checkpoint::open(dir / "whole.safetensors")).checkpoint);
}

TEST_CASE("verify finds a flipped bit, parts that were exchanged, and a file from another save") {
    const TempDir dir;
    const auto tensors = some_tensors();
    const auto codes = [](const fs::path& path) {
        std::vector<Errc> found;
        for (const Error& fault : verify(path).faults) found.push_back(fault.code());
        return found;
    };
    using Codes = std::vector<Errc>;
    const auto saved = [&](const char* name) {
        save(dir / name, tensors, {.checksums = true, .ranks = 2});
        return dir / name;
    };
    const fs::path flipped = saved("flipped");
    std::string bytes = TempDir::read(flipped / shard_name(2));
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write(flipped / shard_name(2), bytes);
    CHECK(codes(flipped) == Codes{Errc::checksum_mismatch});

    // Two slices of one length with their places exchanged: each slice is as it was.
    const std::vector<LazyTensor> even = {tensor("w", Dtype::f32, {6, 3}, 1)};
    save(dir / "moved", even, {.checksums = true, .ranks = 2});
    const auto exchange = [&](int rank, const std::string& from, const std::string& to) {
        std::string file = TempDir::read(dir / "moved" / shard_name(rank));
        const std::size_t at = file.find(from);
        REQUIRE(at != std::string::npos);
        write(dir / "moved" / shard_name(rank), file.replace(at, from.size(), to));
    };
    exchange(1, "[0, 0]", "[3, 0]");
    exchange(2, "[3, 0]", "[0, 0]");
    CHECK(codes(dir / "moved") == Codes{Errc::checksum_mismatch});

    const fs::path mixed = saved("mixed");
    std::vector<LazyTensor> others = tensors;
    others[0] = tensor("w", Dtype::f32, {7, 3}, 99);
    save(dir / "other", others, {.checksums = true, .ranks = 2});
    fs::copy_file(dir / "other" / shard_name(2), mixed / shard_name(2), fs::copy_options::overwrite_existing);
    CHECK(codes(mixed) == Codes{Errc::checksum_mismatch});

    save(dir / "plain", tensors, {.ranks = 2});
    const VerifyReport report = verify(dir / "plain");
    CHECK(report.ok());
    CHECK(report.checked_bytes == 0);
    CHECK(only_of(report.notes).find("no digests") != std::string::npos);
}

TEST_CASE("verify notes a replica that differs") {
    const TempDir dir;
    const auto part = [](char value) {
        return hf_forge::Part{.name = "w", .dtype = "U8", .start = {0}, .shape = {1}, .bytes = std::string(1, value)};
    };
    fs::create_directory(dir / "out");
    write(dir / "out" / shard_name(1), hf_forge::file({part('a')}));
    write(dir / "out" / shard_name(2), hf_forge::file({part('a')}));
    CHECK(verify(dir / "out").notes.size() == 1);  // about digests
    write(dir / "out" / shard_name(2), hf_forge::file({part('b')}));
    const VerifyReport report = verify(dir / "out");
    CHECK(report.ok());
    REQUIRE(report.notes.size() == 2);
    CHECK(report.notes[1].find("different values") != std::string::npos);
}

// Replacing, and being replaced.

TEST_CASE("a save replaces every kind of old model by every kind of new one, and leaves other files") {
    const TempDir dir = TempDir::in_memory();
    const std::vector<LazyTensor> old = {tensor("w", Dtype::f32, {40, 3}, 1), tensor("old", Dtype::f32, {9, 3}, 2)};
    const std::vector<LazyTensor> fresh = {tensor("w", Dtype::f32, {20, 3}, 3), tensor("v", Dtype::f32, {9, 3}, 4)};
    const std::vector<std::pair<std::string, SaveOptions>> kinds = {
        {"one", {}},
        {"sharded", {.max_shard_size = 100}},
        {"2 ranks", {.ranks = 2}},
        {"5 ranks", {.ranks = 5}},
    };
    for (const auto& before : kinds)
        for (const auto& after : kinds)
            for (const bool named : {true, false})
                for (const bool metadata : {false, true}) {
                    CAPTURE(before.first);
                    CAPTURE(after.first);
                    CAPTURE(named);
                    CAPTURE(metadata);
                    const fs::path out = dir / "out";
                    fs::remove_all(out);
                    save(out, old, before.second);
                    if (!named && before.second.ranks == 0) continue;
                    if (!named)  // files of any name
                        for (const std::string& name : names_in(out)) fs::rename(out / name, out / ("my-" + name));
                    write(out / "config.json", "{}");
                    if (metadata) write(out / ".metadata", "of the optimizer");
                    if (metadata) write(out / "__0_0.distcp", "of the optimizer");
                    CHECK_FAULT(save(out, fresh, after.second), Errc::already_exists);
                    SaveOptions options = after.second;
                    options.overwrite = true;
                    const SaveReport report = save(out, fresh, options);
                    std::set<std::string> expected(report.files.begin(), report.files.end());
                    expected.insert("config.json");
                    if (metadata) expected.insert({".metadata", "__0_0.distcp"});
                    const Names names = names_in(out);
                    CHECK(std::set<std::string>(names.begin(), names.end()) == expected);
                    check_equal(Checkpoint::open(out), fresh);
                }
}

TEST_CASE("a model that would be opened in place of files of ranks is not left beside them") {
    const TempDir dir;
    const auto tensors = some_tensors();
    for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "flax_model.msgpack.index.json"}) {
        CAPTURE(name);
        fs::remove_all(dir / "out");
        fs::create_directory(dir / "out");
        write(dir / "out" / name, "x");
        check_error(error_of([&] { save(dir / "out", tensors, {.ranks = 2, .overwrite = true}); }),
                    {Errc::already_exists}, {name});
        CHECK(names_in(dir / "out") == Names{name});
        CHECK(names_in(dir.path()) == Names{"out"});
    }
    // A folder without a checkpoint counts as new.
    fs::remove_all(dir / "out");
    fs::create_directory(dir / "out");
    write(dir / "out/README.md", "x");
    save(dir / "out", tensors, {.ranks = 1});
    check_equal(Checkpoint::open(dir / "out"), tensors);
}

// Folders.

TEST_CASE("a checkpoint in a folder is cut for the same ranks, and replaced with the model") {
    const TempDir dir;
    const auto tensors = some_tensors();
    const std::vector<LazyTensor> state = {tensor("optimizer/state/w/exp_avg", Dtype::f32, {7, 3}, 8)};
    save(dir / "optimizer.safetensors", state);
    const Checkpoint optimizer = Checkpoint::open(dir / "optimizer.safetensors");
    SaveOptions options{.checksums = true, .folders = {{"optimizer", optimizer}}, .ranks = 5};
    const SaveReport report = save(dir / "out", tensors, options);
    CHECK(report.files.size() == 9);
    CHECK(names_in(dir / "out/optimizer") == ranks(4));  // seven rows: two, two, two and one
    check_equal(Checkpoint::open(dir / "out/optimizer"), state);
    const VerifyReport verified = verify(dir / "out");
    CHECK(verified.ok());
    CHECK(verified.tensors == tensors.size() + 1);
    CHECK(verified.checked_bytes == verified.bytes);

    options.ranks = 2;
    options.overwrite = true;
    save(dir / "out", tensors, options);
    CHECK(names_in(dir / "out/optimizer") == ranks(2));
    check_equal(Checkpoint::open(dir / "out/optimizer"), state);
    options.ranks = 0;
    save(dir / "out", tensors, options);
    CHECK(names_in(dir / "out/optimizer") == Names{"model.safetensors"});
    options.ranks = 3;
    options.folders.clear();
    const SaveReport again = save(dir / "out", tensors, options);
    CHECK(names_in(dir / "out/optimizer") == Names{"model.safetensors"});
    CHECK(has_note(again, "another save"));
}

// Killed saves.

TEST_CASE("a save of ranks that is killed at any system call is continued, and gives the same files") {
    const TempDir dir = TempDir::in_memory();
    save(dir / "in.safetensors", some_tensors());
    for (const bool overwrite : {false, true}) {
        CAPTURE(overwrite);
        SaveOptions options{.checksums = true, .ranks = 4, .overwrite = overwrite, .resume = true};
        options.work.threads = 1;
        fs::remove_all(dir / "whole");
        save(dir / "whole", Checkpoint::open(dir / "in.safetensors"), options);
        const auto expected = contents_of(dir / "whole");
        std::size_t most_kept = 0;
        bool died = true;
        for (int nth = soak::step(8); died; nth += soak::step(8)) {
            CAPTURE(nth);
            REQUIRE(nth < 600);
            fs::remove_all(dir / "out");
            if (overwrite) save(dir / "out", some_tensors(), {.ranks = 6});
            died = killed_at(nth, dir / "in.safetensors", dir / "out", options);
            if (!died) break;
            if (!overwrite && fs::exists(dir / "out")) continue;  // the save had finished
            SaveReport report;
            CHECK_OK(report = save(dir / "out", Checkpoint::open(dir / "in.safetensors"), options));
            CHECK(contents_of(dir / "out") == expected);
            CHECK(names_in(dir.path()) == Names{"in.safetensors", "out", "whole"});
            most_kept = std::max(most_kept, report.resumed.size());
        }
        if (soak::whole()) CHECK(most_kept >= 3);
    }
}

TEST_CASE("another number of ranks or another dimension is another save") {
    const TempDir dir;
    save(dir / "in.safetensors", some_tensors());
    const Checkpoint model = Checkpoint::open(dir / "in.safetensors");
    SaveOptions options{.ranks = 4, .resume = true};
    options.work.threads = 1;
    int nth = 1;
    while (killed_at(nth, dir / "in.safetensors", dir / "out", options) && !fs::exists(dir / "out")) ++nth;
    REQUIRE(nth > 10);
    fs::remove_all(dir / "out");
    REQUIRE(killed_at(nth - 8, dir / "in.safetensors", dir / "out", options));
    SaveOptions other = options;
    other.rank_dimension = 1;
    CHECK(save(dir / "out", model, other).resumed.empty());
    check_equal(Checkpoint::open(dir / "out"), {model.begin(), model.end()});
}

// Refusals.

TEST_CASE("ranks are refused where there is one file, exact metadata, or no tensors to cut") {
    const TempDir dir;
    const auto tensors = some_tensors();
    CHECK_FAULT(save(dir / "out.safetensors", tensors, {.ranks = 2}), Errc::invalid_argument);
    CHECK_FAULT(save(dir / "out", tensors, {.one_file = true, .ranks = 2}), Errc::invalid_argument);
    CHECK_FAULT(save(dir / "out", tensors, {.exact_metadata = true, .ranks = 2}), Errc::invalid_argument);
    CHECK_FAULT(save(dir / "out", tensors, {.ranks = 100'000}), Errc::invalid_argument);
    std::vector<std::byte> memory;
    const auto sink = memory_sink("m", memory);
    CHECK_FAULT(save(*sink, tensors, {.ranks = 2}), Errc::invalid_argument);
    const std::vector<Declaration> declared = {{"w", Dtype::f32, {2}}};
    CHECK_FAULT(ShardWriter(dir / "out", declared, {.ranks = 2}), Errc::invalid_argument);
    CHECK(names_in(dir.path()).empty());
}

}  // namespace reshard_test
