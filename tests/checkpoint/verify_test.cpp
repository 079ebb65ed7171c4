// Every fault, not the first; and every byte read.
#include <safemap/verify.hpp>

#include "doctest_safemap.hpp"
#include "forge.hpp"
#include "io/calls.hpp"
#include "temp_dir.hpp"
#include "torch/forge.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

using namespace safemap;

TEST_CASE("a sound file has no faults and all of it is read") {
    const TempDir dir;
    const std::string content = forge::u8_file({{"a", 20'000'000}, {"b", 7}});
    const auto file = dir.write("m.safetensors", content);
    std::vector<std::uint64_t> seen;
    const auto caller = std::this_thread::get_id();
    VerifyOptions options;
    options.monitor.on_progress = [&](const Progress& progress) {
        CHECK(std::this_thread::get_id() == caller);
        CHECK(progress.stage == "verifying");
        CHECK(progress.bytes_total == content.size());
        seen.push_back(progress.bytes_done);
        return true;
    };
    const auto report = verify(file, options);
    CHECK(report.ok());
    CHECK(report.tensors == 2);
    CHECK(report.bytes == 20'000'007);
    CHECK(report.checked_bytes == 0);
    REQUIRE_FALSE(seen.empty());
    CHECK(seen.back() == content.size());
    CHECK(std::is_sorted(seen.begin(), seen.end()));
}

TEST_CASE("every fault of every shard is reported with its path") {
    const TempDir dir;
    dir.write("1", forge::u8_file({{"a", 1}}));
    dir.write("2", forge::safetensors(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},"c":null})", "dddd"));
    const auto index = dir.write("m.index.json", R"({"weight_map":{"a":"1","b":"2","x":"1","d":"3"}})");
    const auto report = verify(index);
    REQUIRE(report.faults.size() == 4);
    CHECK(report.faults[0].code() == Errc::shard_lacks_tensor);
    CHECK(report.faults[0].tensor() == "x");
    CHECK(report.faults[1].code() == Errc::header_bad_field);
    CHECK(report.faults[1].path() == (dir / "2").native());
    CHECK(report.faults[2].code() == Errc::size_mismatch);
    CHECK(report.faults[2].tensor() == "b");
    CHECK(report.faults[3].code() == Errc::shard_missing);
    CHECK(report.tensors == 1);
}

TEST_CASE("what is no checkpoint is a fault, what is no path is an error") {
    const TempDir dir;
    const auto report = verify(dir.write("x.bin", "nothing in particular"));
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::unknown_format);
    CHECK_FAULT(verify(dir / "nowhere"), Errc::path_not_found);
    const TempDir two;
    two.write("a.safetensors", forge::u8_file({}));
    two.write("b.safetensors", forge::u8_file({}));
    CHECK_FAULT(verify(two.path()), Errc::several_models);
}

TEST_CASE("sizes that together do not fit in 64 bits are refused, and a fault") {
    const TempDir dir;
    const std::string storage = forge::storage("ByteStorage", "0", 16);
    std::string dict = "}(";
    for (int i = 0; i < 16; ++i)
        dict += forge::text("t" + std::to_string(i)) +
                forge::tensor(storage, i, {forge::integer(std::int64_t{1} << 60)}, {forge::integer(0)});
    const auto file = dir.write("m.pt", forge::archive(dict + "u", {{"0", std::string(16, 'x')}}));
    const auto report = verify(file);
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::shape_overflow);
    CHECK(report.faults[0].path() == file.native());
    CHECK(report.tensors == 16);
    CHECK_FAULT(Checkpoint::open(file), Errc::shape_overflow);
}

TEST_CASE("however many threads there are, their buffers take 32 MiB at most") {
    static const io::Calls system = io::calls;
    static std::atomic<std::size_t> largest = 0;
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 3'000'000}}));
    io::calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) {
        largest = std::max(largest.load(), size);
        return system.pread(descriptor, into, size, offset);
    };
    VerifyOptions options;
    options.threads = 64;
    const auto report = verify(file, options);
    io::calls = system;
    CHECK(report.ok());
    CHECK(largest == (32 << 20) / 64);
}

TEST_CASE("a file that is written to while it is verified is no report, but an error of the system") {
    static const io::Calls system = io::calls;
    static std::filesystem::path file;
    const TempDir dir;
    file = dir.write("m.safetensors", forge::u8_file({{"a", 3'000'000}}));
    io::calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) {
        std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
        return system.pread(descriptor, into, size, offset);
    };
    const auto error = error_of([] { verify(file); });
    io::calls = system;
    REQUIRE(error);
    CHECK(error->code() == Errc::file_changed);
    CHECK(error->path() == file.native());
    CHECK(verify(file).ok());
}

TEST_CASE("the caller can cancel") {
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 100}}));
    VerifyOptions options;
    options.monitor.on_progress = [](const Progress&) { return false; };
    CHECK_FAULT(verify(file, options), Errc::cancelled);
    std::stop_source stop;
    stop.request_stop();
    VerifyOptions stopped;
    stopped.monitor.stop = stop.get_token();
    CHECK_FAULT(verify(file, stopped), Errc::cancelled);
}

TEST_CASE("checksums of records are compared, and one that was left out is noted") {
    const TempDir dir;
    const std::vector<forge::PtTensor> tensors = {{"w", {4}, {1, 2, 3, 4}}, {"b", {1}, {5}}};
    auto records = forge::pt_records(tensors);
    SUBCASE("all right") {
        const auto report = verify(dir.write("m.pt", forge::zip(records)));
        CHECK(report.ok());
        CHECK(report.tensors == 2);
        CHECK(report.checked_bytes >= 20);
    }
    SUBCASE("a wrong one") {
        records[2].wrong_crc = true;
        const auto report = verify(dir.write("m.pt", forge::zip(records)));
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].code() == Errc::checksum_mismatch);
        CHECK(report.faults[0].message().find("archive/data/0") != std::string::npos);
        CHECK(report.faults[0].path() == (dir / "m.pt").native());
    }
    SUBCASE("one left out") {
        records[3].zero_crc = true;
        const auto report = verify(dir.write("m.pt", forge::zip(records)));
        CHECK(report.ok());
        REQUIRE(report.notes.size() == 1);
        CHECK(report.notes[0].find("1 record has no checksum") == 0);
    }
}
