// Tests digests in saved files: they match the bytes in the file, verify() finds them, and other readers ignore them.
// From top to bottom: what is written, every way to move a tensor, flipped bits, ties, digests of the source, failing
// system calls and sources, cancelling.
#include "base/checksum.hpp"
#include "base/json.hpp"
#include "check_error.hpp"
#include "doctest_safemap.hpp"
#include "io/scripted_calls.hpp"
#include "safetensors/digests.hpp"
#include "soak.hpp"
#include "write/everywhere.hpp"
#include "write/samples.hpp"

#include <safemap/advanced/small_floats.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/digest.hpp>
#include <safemap/verify.hpp>

#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

namespace checksums_test {

using namespace safemap;
using namespace samples;

namespace {

const std::string list_key(safetensors::digests_key);
const std::string identity_key(safetensors::checkpoint_digest_key);

using Digests = std::map<std::string, std::string>;

Digests listed_in(const fs::path& file) {
    Digests digests;
    const auto list = json::parse(metadata_of(file).at(list_key), Errc::header_bad_metadata);
    REQUIRE(list.object());
    for (const auto& [name, digest] : *list.object()) {
        REQUIRE(digest.string());
        CHECK(digests.emplace(name, *digest.string()).second);
    }
    return digests;
}

/// Returns the digests of the tensors' bytes in the file.
Digests digests_of(const fs::path& file) {
    Digests digests;
    for (const auto& [name, stored] : read_file(file)) digests.emplace(name, hex(xxh3(stored.bytes)));
    return digests;
}

std::vector<fs::path> files_of(const fs::path& out) {
    if (!fs::is_directory(out)) return {out};
    std::vector<fs::path> files;
    for (const auto& name : names_in(out))
        if (name.ends_with(".safetensors")) files.push_back(out / name);
    return files;
}

std::string identity_in(const fs::path& out) {
    const auto model = Checkpoint::open(out);
    for (const auto& [key, value] : model.metadata())
        if (key == identity_key) return value;
    return {};
}

/// Checks everything that a save with checksums promises.
void check(const fs::path& out) {
    CAPTURE(out);
    for (const auto& file : files_of(out)) CHECK(listed_in(file) == digests_of(file));
    CHECK(identity_in(out) == digests(Checkpoint::open(out)).checkpoint);
    const VerifyReport report = verify(out);
    for (const Error& fault : report.faults) FAIL_CHECK(std::string(fault.what()));
    CHECK(report.checked_bytes == report.bytes);
}

LazyTensor sliced(std::string name, Dtype dtype, std::uint64_t rows, std::uint64_t columns) {
    return tensor(std::move(name), dtype, {rows, columns}, 5).slice({{}, {.start = 1, .step = 2}});
}

/// Returns a tensor for every way in which a save moves bytes.
std::vector<LazyTensor> of_every_kind() {
    std::vector<LazyTensor> tensors = {
        tensor("spans blocks", Dtype::f32, {700, 1000}, 1),
        tensor("spans blocks, too", Dtype::f16, {1'500'001}, 2),
        transposed("transposed", Dtype::f32, 900, 1100, 3),
        transposed("tiles", Dtype::f32, 4, 300'000, 7),
        transposed("tiles of words", Dtype::i64, 700, 800, 4),
        transposed("small and transposed", Dtype::f32, 40, 50, 6),
        sliced("every second column", Dtype::f32, 900, 1400),
        tensor("nothing", Dtype::f32, {3, 0}),
        tensor("no dimensions", Dtype::f64, {}),
        tensor("half bytes", Dtype::f4, {4'000'000}),
        tensor("six bits", Dtype::f6_e2m3, {400}),
        tensor("truth", Dtype::boolean, {5}),
        tensor("\"quoted\" \\ \n \x7f \xc3\xa9", Dtype::bf16, {3}),
        tensor("safemap.xxh3_128", Dtype::u8, {3}),
        tensor("safemap.checkpoint_xxh3_128", Dtype::u8, {4}),
    };
    for (std::uint64_t i = 0; i < 300; ++i)
        tensors.push_back(tensor("small." + std::to_string(i), Dtype::bf16, {i % 7, 1 + i % 5}, i));
    return tensors;
}

SaveOptions with_checksums(std::uint64_t max_shard_size = 5'000'000'000) {
    return {.max_shard_size = max_shard_size, .checksums = true};
}

}  // namespace

TEST_CASE("digests match the bytes in the file, and the digest of the checkpoint is that of hash") {
    const TempDir dir;
    const auto tensors = of_every_kind();
    save_everywhere(dir / "one.safetensors", tensors, with_checksums());
    check(dir / "one.safetensors");
    CHECK(listed_in(dir / "one.safetensors").size() == tensors.size());
    save(dir / "shards", tensors, with_checksums(5'000'000));
    CHECK(files_of(dir / "shards").size() > 3);
    check(dir / "shards");
    CHECK(identity_in(dir / "shards") == identity_in(dir / "one.safetensors"));
    save(dir / "one shard", tensors, with_checksums());
    CHECK(names_in(dir / "one shard") == std::vector<std::string>{"model.safetensors"});
    check(dir / "one shard");
}

TEST_CASE("digests of cast tensors are of the written bytes, not of the source") {
    const TempDir dir;
    auto options = with_checksums(5'000'000);
    options.dtype = Dtype::bf16;
    save(dir / "cast", of_every_kind(), options);
    check(dir / "cast");
    save(dir / "not cast", of_every_kind(), with_checksums(5'000'000));
    CHECK(identity_in(dir / "cast") != identity_in(dir / "not cast"));
}

TEST_CASE("a checkpoint without tensors has digests") {
    const TempDir dir;
    save_everywhere(dir / "none.safetensors", std::vector<LazyTensor>(), with_checksums());
    check(dir / "none.safetensors");
    CHECK(metadata_of(dir / "none.safetensors") ==
          std::map<std::string, std::string>{
              {"format", "pt"}, {identity_key, "99aa06d3014798d86001c324468d497f"}, {list_key, "{}"}});
    save(dir / "empty", std::vector{tensor("e", Dtype::f32, {0})}, with_checksums());
    check(dir / "empty");
}

TEST_CASE("the list is compact JSON in the order of the data") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("b", Dtype::u8, {1}), tensor("a", Dtype::u8, {1}),
                                             tensor("\"", Dtype::i64, {1})};
    save_everywhere(dir / "m.safetensors", tensors, with_checksums());
    const auto found = digests_of(dir / "m.safetensors");
    CHECK(metadata_of(dir / "m.safetensors").at(list_key) ==
          R"({"\"":")" + found.at("\"") + R"(","a":")" + found.at("a") + R"(","b":")" + found.at("b") + R"("})");
}

TEST_CASE("any number of threads, through the page cache or bypassing it, gives the same files") {
    const TempDir dir;
    const auto tensors = of_every_kind();
    auto options = with_checksums(5'000'000);
    options.dtype = Dtype::f16;
    options.work.threads = 1;
    save(dir / "1", tensors, options);
    const auto expected = contents_of(dir / "1");
    for (int threads = 1 + soak::step(2); threads <= 8; threads += soak::step(3)) {
        std::optional<ShrunkMemory> small;
        if (threads % 2 == 0) small.emplace();
        options.work.threads = static_cast<unsigned>(threads);
        const fs::path out = dir / std::to_string(threads);
        save(out, tensors, options);
        CHECK(contents_of(out) == expected);
        fs::remove_all(out);
    }
}

TEST_CASE("without checksums, the files are the same except for the digests") {
    const TempDir dir;
    const auto tensors = of_every_kind();
    save_everywhere(dir / "without.safetensors", tensors);
    CHECK(metadata_of(dir / "without.safetensors") == std::map<std::string, std::string>{{"format", "pt"}});
    save_everywhere(dir / "with.safetensors", tensors, with_checksums());
    CHECK(digests_of(dir / "without.safetensors") == digests_of(dir / "with.safetensors"));
    CHECK(verify(dir / "without.safetensors").checked_bytes == 0);
}

TEST_CASE("the plan matches the files") {
    const TempDir dir;
    auto options = with_checksums(5'000'000);
    const SaveReport written = save(dir / "out", of_every_kind(), options);
    options.plan_only = true;
    const SaveReport planned = save(dir / "plan", of_every_kind(), options);
    CHECK(planned.files == written.files);
    CHECK(planned.bytes_written == written.bytes_written);
    CHECK_FALSE(fs::exists(dir / "plan"));
}

TEST_CASE("a flipped bit is found at any place, with the name of the tensor") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {300'000}, 1), tensor("b", Dtype::f32, {7}, 2),
                                             tensor("c", Dtype::u8, {1}, 3), tensor("e", Dtype::u8, {0})};
    const fs::path file = dir / "m.safetensors";
    save(file, tensors, with_checksums());
    const std::string sound = TempDir::read(file);
    ThrowFirst faults;
    const auto header = safetensors::read_header(*open_file(file), safetensors::Rules::compatible, 100'000'000, faults);
    std::random_device device;
    const unsigned seed = device();
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (const auto& info : header.tensors) {
        if (info.data.size == 0) continue;
        const std::string name(info.name);
        CAPTURE(name);
        std::vector<std::uint64_t> places = {0, info.data.size - 1};
        for (int i = 0; i < 4; ++i) places.push_back(random() % info.data.size);
        for (const std::uint64_t place : places) {
            CAPTURE(place);
            std::string damaged = sound;
            char& byte = damaged[info.data.offset + place];
            byte = static_cast<char>(byte ^ 1 << random() % 8);
            dir.write("m.safetensors", damaged);
            const VerifyReport report = verify(file);
            REQUIRE(report.faults.size() == 1);
            CHECK(report.faults[0].code() == Errc::checksum_mismatch);
            CHECK(report.faults[0].tensor() == name);
            CHECK(report.faults[0].path() == file.native());
            CHECK(report.checked_bytes == report.bytes);
        }
    }
}

TEST_CASE("a flipped bit in the digests is a fault too") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {3}, 1), tensor("b", Dtype::u8, {7}, 2)};
    const fs::path file = dir / "m.safetensors";
    save(file, tensors, with_checksums());
    const std::string sound = TempDir::read(file);
    for (const auto& key : {list_key, identity_key}) {
        const std::size_t begin = sound.find(key) + key.size() + 3;
        const std::size_t end = sound.find(key == list_key ? "}\"" : "\"", begin);
        for (std::size_t at = begin; at < end; ++at)
            for (int bit = soak::step(3) - 1; bit < 8; bit += soak::step(3)) {
                CAPTURE(at);
                CAPTURE(bit);
                std::string damaged = sound;
                damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
                dir.write("m.safetensors", damaged);
                CHECK_FALSE(verify(file).ok());
            }
    }
}

TEST_CASE("a renamed tensor and a changed shape are found by the digest of the checkpoint") {
    const TempDir dir;
    save(dir / "out", std::vector{tensor("w", Dtype::f32, {2, 3}), tensor("v", Dtype::f32, {6})}, with_checksums(24));
    for (const auto& file : files_of(dir / "out")) {
        std::string bytes = TempDir::read(file);
        const std::size_t at = bytes.find(R"("shape":[2,3])");
        if (at == bytes.npos) continue;
        bytes[at + 9] = '3';
        bytes[at + 11] = '2';
        dir.write("out/" + file.filename().native(), bytes);
    }
    const VerifyReport report = verify(dir / "out");
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::checksum_mismatch);
    CHECK(report.faults[0].path() == (dir / "out").native());
    CHECK(report.faults[0].message().find("of the checkpoint") != std::string::npos);
}

TEST_CASE("the digest of the checkpoint covers tied names, as readers see them") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {tensor("w", Dtype::f32, {100}, 1), tensor("v", Dtype::f32, {50}, 2)};
    auto options = with_checksums();
    options.metadata = {{"head", "w"},   {"other", "w"}, {"v", "w"},      {"to.head", "head"}, {"total_size", "w"},
                        {"format", "w"}, {"who", "me"},  {list_key, "w"}, {identity_key, "w"}};
    save_everywhere(dir / "one.safetensors", tensors, options);
    check(dir / "one.safetensors");
    const auto one = Checkpoint::open(dir / "one.safetensors");
    REQUIRE(one.find("head"));
    CHECK(one.find(list_key) == nullptr);
    options.max_shard_size = 400;
    save(dir / "shards", tensors, options);
    CHECK(names_in(dir / "shards").size() == 3);
    check(dir / "shards");
    CHECK_OK(Checkpoint::open(dir / "shards")["head"]);
    // The same when the checkpoint is saved again.
    save(dir / "again", one, with_checksums(400));
    check(dir / "again");
    CHECK_OK(Checkpoint::open(dir / "again")["other"]);
}

TEST_CASE("digests of a source are never copied, but recomputed or dropped") {
    const TempDir dir;
    const auto tensors = std::vector{tensor("w", Dtype::f32, {100}, 1), tensor("v", Dtype::f32, {50}, 2)};
    auto options = with_checksums();
    options.metadata = {{"who", "me"}};
    save_everywhere(dir / "one.safetensors", tensors, options);
    const auto one = Checkpoint::open(dir / "one.safetensors");

    save_everywhere(dir / "dropped.safetensors", one);
    CHECK(metadata_of(dir / "dropped.safetensors") ==
          std::map<std::string, std::string>{{"format", "pt"}, {"who", "me"}});
    save_everywhere(dir / "again.safetensors", one, with_checksums());
    CHECK(TempDir::read(dir / "again.safetensors") == TempDir::read(dir / "one.safetensors"));
    auto cast = with_checksums(200);
    cast.dtype = Dtype::f16;
    save(dir / "cast", one, cast);
    check(dir / "cast");
    save(dir / "cast and dropped", one, {.dtype = Dtype::f16, .max_shard_size = 200});
    CHECK(identity_in(dir / "cast and dropped").empty());
    CHECK(verify(dir / "cast and dropped").ok());
}

TEST_CASE("every system call of a save with checksums may fail, reading back included") {
    const TempDir dir;
    // In two tiles of four rows.
    const std::vector<LazyTensor> tensors = {transposed("tiles", Dtype::f32, 4, 600'000), tensor("b", Dtype::u8, {9})};
    for (const int number : {EIO, EACCES}) {
        bool survived = false;
        bool read_back = false;
        for (int nth = soak::step(10); !survived; nth += soak::step(10)) {
            CAPTURE(nth);
            REQUIRE(nth < 200);
            auto options = with_checksums(9'600'000);
            options.work.threads = 1;
            const auto failure = fail_at(nth, number, [&] { save(dir / "out", tensors, options); });
            const auto& error = failure.error;
            const auto& which = failure.which;
            CAPTURE(which);
            REQUIRE(error.has_value() == !which.empty());
            if (error) {
                CHECK(exit_code(error->code()) == 3);
                CHECK(names_in(dir.path()).empty());
                read_back = read_back || which == "pread";
                continue;
            }
            survived = true;
            check(dir / "out");
            fs::remove_all(dir / "out");
        }
        if (soak::whole()) CHECK(read_back);
    }
}

TEST_CASE("interrupted and short system calls make no difference to digests") {
    const TempDir dir;
    const std::vector<LazyTensor> tensors = {transposed("tiles", Dtype::f32, 1500, 1600), tensor("b", Dtype::u8, {9})};
    {
        ScriptedCalls calls;
        calls.stutter(10'007);
        save(dir / "out", tensors, with_checksums());
    }
    check(dir / "out");
}

TEST_CASE("a failing source ends the save with its error, even if another thread waits for its turn") {
    const TempDir dir;
    constexpr std::uint64_t size = 20'000'000;
    for (const unsigned threads : {1U, 2U, 8U})
        for (std::uint64_t at = 0; at < size; at += size / 5) {
            const auto source = callback_source("slow", size, [=](std::uint64_t offset, std::span<std::byte> into) {
                std::memset(into.data(), 7, into.size());
                if (offset < at) return;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                throw Error(Errc::io_error, "the disk is on fire");
            });
            const std::vector<LazyTensor> tensors = {tensor("a", Dtype::f64, {100'000}),
                                                     {"w", stored_run(Dtype::u8, {size}, source, 0)}};
            auto options = with_checksums();
            options.work.threads = threads;
            check_error(error_of([&] { save(dir / "out", tensors, options); }), {Errc::io_error}, {}, {.tensor = "w"});
            CHECK(names_in(dir.path()).empty());
        }
}

TEST_CASE("a save can be cancelled while threads wait for their turn, and leaves nothing") {
    const TempDir dir;
    constexpr std::uint64_t size = 20'000'000;
    for (std::uint64_t round = 0; round < 20; ++round) {
        std::stop_source stop;
        const auto source = callback_source("slow", size, [=](std::uint64_t offset, std::span<std::byte> into) mutable {
            std::memset(into.data(), 7, into.size());
            if (offset > round * 1'000'000) stop.request_stop();
        });
        auto options = with_checksums();
        options.work.threads = 8;
        options.work.monitor.stop = stop.get_token();
        const std::vector<LazyTensor> tensors = {{"w", stored_run(Dtype::u8, {size}, source, 0)}};
        // The last block may already be running.
        const auto error = error_of([&] { save(dir / "out", tensors, options); });
        REQUIRE((error || round > 17));
        if (error) CHECK(error->code() == Errc::cancelled);
        CHECK(names_in(dir.path()).empty() == error.has_value());
        fs::remove_all(dir / "out");
    }
}

}  // namespace checksums_test
