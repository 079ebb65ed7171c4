// Tests that verify() reports every fault, not only the first, and reads every byte. From top to bottom: valid files,
// faults of shards and files, memory, changed files and cancelling, checksums of records, digests.
#include <safemap/checkpoint.hpp>
#include <safemap/verify.hpp>

#include "base/checksum.hpp"
#include "doctest_safemap.hpp"
#include "forge/files.hpp"
#include "forge/pickle.hpp"
#include "forge/zip.hpp"
#include "io/calls.hpp"
#include "temp_dir.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>

namespace verify_test {

using namespace safemap;

namespace {

std::string xxh3_of(std::string_view bytes) { return hex(xxh3(std::as_bytes(std::span(bytes.data(), bytes.size())))); }

/// Returns a file with the bytes "aaaa" for "a" and "bbb" for "b", and this text as its list of digests.
std::string with_list(std::string_view list) {
    std::string escaped;
    for (const char c : list) escaped += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return forge::safetensors(R"({"__metadata__":{"safemap.xxh3_128":")" + escaped +
                                  R"("},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})",
                              "aaaabbb");
}

std::string entry(std::string_view name, std::string_view bytes) {
    return '"' + std::string(name) + "\":\"" + xxh3_of(bytes) + '"';
}

}  // namespace

TEST_CASE("a forged file whose storage has two types is refused, and each of its tensors is a fault") {
    const auto file = std::filesystem::path(SAFEMAP_TEST_DATA) / "reports" / "two_types" / "two.pt";
    const auto check = [&](const Error& error) {
        CHECK(error.code() == Errc::bad_tensor);
        CHECK(error.path() == file.native());
        for (const char* const part : {"'0'", "FloatStorage", "IntStorage"})
            CHECK(error.message().find(part) != std::string::npos);
    };
    const auto error = error_of([&] { return Checkpoint::open(file); });
    REQUIRE(error.has_value());
    check(*error);
    const auto report = verify(file);
    REQUIRE(report.faults.size() == 2);
    for (const Error& fault : report.faults) check(fault);
    CHECK(report.faults[0].tensor() == "a");
    CHECK(report.faults[1].tensor() == "b");
}

TEST_CASE("a valid file has no faults and is read completely") {
    const TempDir dir;
    const std::string content = forge::u8_file({{"a", 20'000'000}, {"b", 7}});
    const auto file = dir.write("m.safetensors", content);
    std::vector<std::uint64_t> seen;
    const auto caller = std::this_thread::get_id();
    VerifyOptions options;
    options.work.monitor.on_progress = [&](const Progress& progress) {
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

TEST_CASE("a tensor that the index does not name is a fault of verify, and of nothing else") {
    const TempDir dir;
    dir.write("1", forge::u8_file({{"a", 1}, {"x", 1}, {"y", 1}}));
    const auto index = dir.write("m.index.json", R"({"weight_map":{"a":"1"}})");
    CHECK(Checkpoint::open(index).size() == 1);
    const auto report = verify(index);
    REQUIRE(report.faults.size() == 2);
    CHECK(report.faults[1].code() == Errc::index_lacks_tensor);
    CHECK(report.faults[1].tensor() == "y");
    CHECK(report.faults[1].path() == (dir / "1").native());
    CHECK(report.faults[1].hint().find("safemap repair") != std::string::npos);
}

TEST_CASE("a file that is not a checkpoint is a fault, and a path that does not exist is an error") {
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

TEST_CASE("sizes that overflow 64 bits in total are a fault, and are refused by open") {
    const TempDir dir;
    const std::string storage = forge::storage("ByteStorage", "0", 16);
    std::string dict = "}(";
    for (int i = 0; i < 16; ++i)
        dict += forge::text("t" + std::to_string(i)) + forge::view(storage, i, {std::int64_t{1} << 60}, {0});
    const auto file = dir.write("m.pt", forge::archive(dict + "u", {{"0", std::string(16, 'x')}}));
    const auto report = verify(file);
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::shape_overflow);
    CHECK(report.faults[0].path() == file.native());
    CHECK(report.tensors == 16);
    CHECK_FAULT(Checkpoint::open(file), Errc::shape_overflow);
}

TEST_CASE("the buffers of all threads together take at most 32 MiB") {
    static const io::Calls system = io::calls;
    static std::atomic<std::size_t> largest = 0;
    const TempDir dir;
    const auto file = dir.write("m.safetensors", forge::u8_file({{"a", 3'000'000}}));
    io::calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) {
        largest = std::max(largest.load(), size);
        return system.pread(descriptor, into, size, offset);
    };
    VerifyOptions options;
    options.work.threads = 64;
    const auto report = verify(file, options);
    io::calls = system;
    CHECK(report.ok());
    CHECK(largest == (32 << 20) / 64);
}

TEST_CASE("a file that is written to during verify is a system error, not a report") {
    static const io::Calls system = io::calls;
    static std::filesystem::path file;
    const TempDir dir;
    file = dir.write("m.safetensors", forge::u8_file({{"a", 3'000'000}}));
    io::calls.pread = [](int descriptor, void* into, std::size_t size, off_t offset) {
        std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::seconds(1));
        return system.pread(descriptor, into, size, offset);
    };
    const auto error = error_of([] { return verify(file); });
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
    options.work.monitor.on_progress = [](const Progress&) { return false; };
    CHECK_FAULT(verify(file, options), Errc::cancelled);
    std::stop_source stop;
    stop.request_stop();
    VerifyOptions stopped;
    stopped.work.monitor.stop = stop.get_token();
    CHECK_FAULT(verify(file, stopped), Errc::cancelled);
}

TEST_CASE("checksums of records are compared, and a missing checksum is noted") {
    const TempDir dir;
    const std::vector<forge::PtTensor> tensors = {{"w", {4}, {1, 2, 3, 4}}, {"b", {1}, {5}}};
    auto records = forge::pt_records(tensors);
    SUBCASE("all correct") {
        const auto report = verify(dir.write("m.pt", forge::zip(records)));
        CHECK(report.ok());
        CHECK(report.tensors == 2);
        CHECK(report.checked_bytes >= 20);
    }
    SUBCASE("a wrong one") {
        records[2].crc32 ^= 0xdeadbeef;
        const auto report = verify(dir.write("m.pt", forge::zip(records)));
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].code() == Errc::checksum_mismatch);
        CHECK(report.faults[0].message().find("archive/data/0") != std::string::npos);
        CHECK(report.faults[0].path() == (dir / "m.pt").native());
    }
    SUBCASE("a wrong one of the pickle, which open also refuses") {
        records[0].crc32 ^= 0xdeadbeef;
        const auto path = dir.write("m.pt", forge::zip(records));
        CHECK_FAULT(Checkpoint::open(path), Errc::checksum_mismatch);
        const auto report = verify(path);
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].code() == Errc::checksum_mismatch);
        CHECK(report.faults[0].message().find("archive/data.pkl") != std::string::npos);
    }
    SUBCASE("a missing one") {
        records[3].crc32 = 0;
        const auto report = verify(dir.write("m.pt", forge::zip(records)));
        CHECK(report.ok());
        REQUIRE(report.notes.size() == 1);
        CHECK(report.notes[0].find("1 record has no checksum") == 0);
    }
}

TEST_CASE("tensors are compared with the digests in the file, if there are any") {
    const TempDir dir;
    const auto check = [&](const std::string& list, std::uint64_t checked, std::vector<std::string> wrong) {
        CAPTURE(list);
        const auto report = verify(dir.write("m.safetensors", with_list(list)));
        CHECK(report.checked_bytes == checked);
        REQUIRE(report.faults.size() == wrong.size());
        for (std::size_t i = 0; i < wrong.size(); ++i) {
            CHECK(report.faults[i].code() == Errc::checksum_mismatch);
            CHECK(report.faults[i].tensor() == wrong[i]);
            CHECK(report.faults[i].path() == (dir / "m.safetensors").native());
        }
    };
    check('{' + entry("a", "aaaa") + ',' + entry("b", "bbb") + '}', 7, {});
    check("{ " + entry("b", "bbb") + " ,  " + entry("a", "aaaa") + " }", 7, {});
    check('{' + entry("b", "bbb") + '}', 3, {});
    check("{}", 0, {});
    check('{' + entry("a", "aaax") + ',' + entry("b", "bbb") + '}', 7, {"a"});
    check('{' + entry("b", "aaaa") + ',' + entry("a", "bbb") + '}', 7, {"a", "b"});
    check(R"({"\u0061":")" + xxh3_of("aaaa") + "\"}", 4, {});
}

TEST_CASE("an invalid list of digests is a fault, and its valid entries are still compared") {
    const TempDir dir;
    const auto check = [&](const std::string& list, std::uint64_t checked, std::string_view says) {
        CAPTURE(list);
        const auto report = verify(dir.write("m.safetensors", with_list(list)));
        CHECK(report.checked_bytes == checked);
        REQUIRE(report.faults.size() == 1);
        CHECK(report.faults[0].code() == Errc::header_bad_metadata);
        CHECK(report.faults[0].path() == (dir / "m.safetensors").native());
        CHECK(report.faults[0].message().find(says) != std::string::npos);
    };
    check("", 0, "JSON");
    check("[]", 0, "not an object");
    check(R"({"a":"no digest"})", 0, "for 'a'");
    check('{' + entry("a", "aaaa") + R"(,"b":null})", 0, "for 'b'");
    check('{' + entry("a", "aaaa") + ',' + entry("x", "") + '}', 4, "name 1 tensor that the file does not have");
    check('{' + entry("a", "aaaa") + ',' + entry("x", "") + ',' + entry("y", "") + '}', 4, "name 2 tensors");
    check('{' + entry("a", "") + ',' + entry("a", "aaaa") + '}', 4, "'a' more than once");
    check(std::string(10'000, ' ') + "{}", 0, "more than the tensors of the file need");
    CHECK_OK(Checkpoint::open(dir / "m.safetensors"));
}

TEST_CASE("a tensor that the index omits is compared with the digest in its shard") {
    const TempDir dir;
    const std::string sound = with_list('{' + entry("a", "aaaa") + ',' + entry("b", "bbb") + '}');
    dir.write("1", sound);
    const auto index = dir.write("m.index.json", R"({"weight_map":{"a":"1"}})");
    auto report = verify(index);
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::index_lacks_tensor);
    CHECK(report.checked_bytes == 7);
    dir.write("1", sound.substr(0, sound.size() - 1) + 'x');
    report = verify(index);
    REQUIRE(report.faults.size() == 2);
    CHECK(report.faults[1].code() == Errc::checksum_mismatch);
    CHECK(report.faults[1].tensor() == "b");
}

TEST_CASE("digests are not compared if the header has faults") {
    const TempDir dir;
    std::string file = with_list('{' + entry("a", "aaaa") + '}');
    const auto report = verify(dir.write("m.safetensors", file.substr(0, file.size() - 1)));
    REQUIRE(report.faults.size() == 1);
    CHECK(report.faults[0].code() == Errc::file_truncated);
    CHECK(report.checked_bytes == 0);
}

TEST_CASE("a large tensor with a digest is read once, in parallel, and hashed in order") {
    static const io::Calls system = io::calls;
    static std::mutex mutex;
    static std::set<std::thread::id> readers;
    static std::map<off_t, std::size_t> reads;
    const TempDir dir;
    constexpr std::size_t size = 40'000'000;
    std::string data(size, '\0');
    for (std::size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * i >> 11);
    const auto write = [&](const std::string& digest) {
        return dir.write("m.safetensors",
                         forge::safetensors(R"({"__metadata__":{"safemap.xxh3_128":"{\"w\":\")" + digest +
                                                R"(\"}"},"w":{"dtype":"U8","shape":[40000000],)"
                                                R"("data_offsets":[0,40000000]}})",
                                            data));
    };
    const auto file = write(xxh3_of(data));
    const std::size_t header = std::filesystem::file_size(file) - size;
    for (const unsigned threads : {1U, 2U, 3U, 8U, 64U}) {
        CAPTURE(threads);
        readers.clear();
        reads.clear();
        io::calls.pread = [](int descriptor, void* into, std::size_t count, off_t offset) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            const ssize_t done = system.pread(descriptor, into, count, offset);
            const std::lock_guard lock(mutex);
            readers.insert(std::this_thread::get_id());
            reads[offset] += static_cast<std::size_t>(done);
            return done;
        };
        VerifyOptions options;
        options.work.threads = threads;
        const auto report = verify(file, options);
        io::calls = system;
        CHECK(report.ok());
        CHECK(report.checked_bytes == size);
        CHECK((threads == 1 || readers.size() > 1));
        std::size_t read_of_data = 0;
        for (const auto& [offset, count] : reads)
            if (offset >= static_cast<off_t>(header)) read_of_data += count;
        CHECK(read_of_data == size);
    }
    CHECK(verify(write(xxh3_of("other"))).faults.size() == 1);
}

}  // namespace verify_test
