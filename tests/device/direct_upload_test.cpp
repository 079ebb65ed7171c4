// Tests of uploads past the page cache.
#include "device/cache_fixture.hpp"
#include "device/fake_device.hpp"
#include "device/paths.hpp"
#include "device/random_tensors.hpp"
#include "doctest_safemap.hpp"
#include "io/strict_direct.hpp"
#include "temp_dir.hpp"

#include <safemap/advanced/file.hpp>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace direct_upload_test {

using namespace safemap;
using device::PathRules;

namespace {

// The smallest read of the smallest file, and no trial.
constexpr PathRules always_direct{.least_file = 0, .least_read = 1, .trial = 0, .margin = 0};

/// A machine with an empty page cache.
class NothingCached {
public:
    NothingCached() {
        io::calls.mincore = [](void*, std::size_t size, unsigned char* pages) {
            std::memset(pages, 0, (size + 4095) / 4096);
            return 0;
        };
        io::calls.cachestat = [](int, Extent, std::uint64_t* pages) {
            *pages = 0;
            return 0;
        };
    }
    ~NothingCached() { io::calls = real_; }
    NothingCached(const NothingCached&) = delete;
    NothingCached& operator=(const NothingCached&) = delete;

private:
    const io::Calls real_ = io::calls;
};

std::shared_ptr<const Source> file_of(const TempDir& dir, std::size_t size) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(pattern(5, i));
    return open_file(dir.write("weights", content));
}

}  // namespace

TEST_CASE("tensors of every kind come past the page cache with the same bytes") {
    const TempDir dir;
    const auto file = file_of(dir, 3'000'777);
    const NothingCached cold;
    const StrictDirect disk(512, 512);
    for (const bool staged : {false, true})
        for (const auto kind : random_tensors::kinds) {
            CAPTURE(staged);
            CAPTURE(static_cast<int>(kind));
            random_tensors::Maker maker(static_cast<unsigned>(kind), file);
            const LazyTensor tensor = maker.make(kind, 200'000).tensor;
            const std::shared_ptr<Device> device = staged ? std::make_shared<FakeDevice>() : Device::open("host");
            const CacheFixture cache(device, {.device_budget = 100_MiB, .staging_bytes = 1_MiB, .readers = 2},
                                     always_direct);
            const Held held = cache.acquire(cache.bundle(tensor));
            CHECK(read_back(*device, held[0]) == value_of(tensor));
            const auto stats = cache.stats();
            CHECK((stats.bytes_direct > 0) == (tensor.nbytes() > 0));
            CHECK((stats.time_direct.count() > 0) == (tensor.nbytes() > 0));
            CHECK(stats.bytes_pread == 0);
        }
    CHECK(disk.reads() > 0);
}

TEST_CASE("memory of the caller is filled past the page cache, too") {
    const TempDir dir;
    const auto file = file_of(dir, 100'000);
    const NothingCached cold;
    const StrictDirect disk(512, 512);
    const auto host = Device::open("host");
    const CacheFixture cache(host, {.device_budget = 1'000, .staging_bytes = 1_MiB, .readers = 1}, always_direct);
    const LazyTensor tensor("t", stored_run(Dtype::u8, {90'000}, file, 777));
    std::vector<std::byte> bytes(90'000);
    cache.fill({{tensor, bytes.data(), bytes.size()}})->wait();
    CHECK(bytes == value_of(tensor));
    CHECK(cache.stats().bytes_direct == 90'000);
}

TEST_CASE("an upload stays in the page cache if the caller wants that, or the file is there") {
    const TempDir dir;
    const auto file = file_of(dir, 1'000'000);
    const LazyTensor tensor("t", stored_run(Dtype::u8, {1'000'000}, file, 0));
    const auto direct_bytes = [&](bool allowed) {
        const CacheFixture cache(Device::open("host"), {.device_budget = 1_MiB, .readers = 1, .direct_reads = allowed},
                                 always_direct);
        const Held held = cache.acquire(cache.bundle(tensor));
        CHECK(cache.stats().bytes_pread + cache.stats().bytes_direct == 1'000'000);
        return cache.stats().bytes_direct;
    };
    const StrictDirect disk(512, 512);
    {
        const NothingCached cold;
        CHECK(direct_bytes(true) == 1'000'000);
        CHECK(direct_bytes(false) == 0);
    }
    // The file was just written.
    if (file->residency({0, 1'000'000}).resident == 1'000'000) CHECK(direct_bytes(true) == 0);
    else MESSAGE("skipped: the kernel evicted the file, or does not tell");
}

TEST_CASE("an upload past the page cache of a file that changes is an error, and a read that fails is tried as usual") {
    const TempDir dir;
    const auto file = file_of(dir, 1'000'000);
    const LazyTensor tensor("t", stored_run(Dtype::u8, {1'000'000}, file, 0));
    const NothingCached cold;
    StrictDirect disk(512, 512);
    const auto fault = [&] {
        const CacheFixture cache(Device::open("host"), {.device_budget = 1_MiB, .readers = 1}, always_direct);
        return error_of([&] { static_cast<void>(cache.acquire(cache.bundle(tensor))); });
    };
    disk.fail_nth(1, EIO);
    CHECK_FALSE(fault());
    CHECK(disk.reads() == 1);
    CHECK_FALSE(fault());
    CHECK(disk.reads() > 1);
    std::filesystem::resize_file(file->name(), 900'000);
    const auto cut = fault();
    REQUIRE(cut);
    CHECK(cut->code() == Errc::file_changed);
    CHECK(cut->tensor() == "t");
}

}  // namespace direct_upload_test
