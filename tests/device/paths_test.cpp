// Tests of paths.hpp: the trial, and the choice for a source. Times are made up.
#include "device/paths.hpp"

#include "device/counted.hpp"
#include "doctest_safemap.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

namespace paths_test {

using namespace safemap;
using device::Path;
using device::PathRules;
using device::Paths;
using device::PathTrial;
using std::chrono::nanoseconds;

namespace {

/// Runs a trial with reads of `bytes`, all cold, each of which takes `pread` or `direct`. Returns the paths, a letter
/// for each read.
std::string run(PathTrial& trial, int reads, std::uint64_t bytes, nanoseconds pread, nanoseconds direct) {
    std::string paths;
    for (int i = 0; i < reads; ++i) {
        const auto [path, counts] = trial.choose(true);
        paths += path == Path::pread ? 'p' : 'd';
        if (counts) trial.add(path, bytes, path == Path::pread ? pread : direct);
    }
    return paths;
}

constexpr PathRules small_trial{.trial = 100, .margin = 120};

}  // namespace

TEST_CASE("a trial reads cold blocks by both paths in turn, and then by the faster one") {
    PathTrial faster(small_trial, 1'000'000);
    CHECK(run(faster, 20, 40, nanoseconds(12), nanoseconds(10)) == "pppdddpppddddddddddd");
    CHECK_FALSE(faster.is_settled());
    PathTrial slower(small_trial, 1'000'000);
    CHECK(run(slower, 20, 40, nanoseconds(10), nanoseconds(12)) == "pppdddpppppppppppppp");
    CHECK(slower.is_settled());
    PathTrial large_reads(small_trial, 1'000'000);
    CHECK(run(large_reads, 6, 500, nanoseconds(12), nanoseconds(10)) == "pdpddd");
}

TEST_CASE("the page cache is left only if that is clearly faster") {
    struct Times {
        int pread;
        int direct;
        bool enough;
    };
    constexpr Times all[] = {{12, 10, true},        {11, 10, false},      {10, 10, false},
                             {1'199, 1'000, false}, {1'200, 1'000, true}, {1, 0, true}};
    for (const Times& times : all) {
        CAPTURE(times.pread);
        PathTrial trial(small_trial, 1'000'000);
        run(trial, 100, 10, nanoseconds(times.pread), nanoseconds(times.direct));
        CHECK(trial.is_settled() != times.enough);
    }
    std::mt19937_64 random(7);
    int settled = 0;
    for (int round = 0; round < 1'000; ++round) {
        const PathRules rules{.trial = 1 + random() % 1'000, .margin = 50 + static_cast<unsigned>(random() % 150)};
        PathTrial trial(rules, UINT64_MAX);
        double bytes[2] = {};
        double times[2] = {};
        bool lost = false;  // a turn of the path past the cache
        for (int turns = 0; turns < 2 && !lost;) {
            const auto [path, counts] = trial.choose(true);
            CHECK(counts);
            const std::uint64_t size = 1 + random() % 500;
            const std::uint64_t time = 1 + random() % 1'000;
            bytes[static_cast<int>(path)] += static_cast<double>(size);
            times[static_cast<int>(path)] += static_cast<double>(time);
            trial.add(path, size, nanoseconds(time));
            if (std::min(bytes[0], bytes[1]) < static_cast<double>(rules.trial)) continue;
            lost = 100 * bytes[1] * times[0] < rules.margin * bytes[0] * times[1];  // all of them are whole numbers
            ++turns;
            bytes[0] = bytes[1] = times[0] = times[1] = 0;
        }
        CHECK(trial.is_settled() == lost);
        settled += trial.is_settled() ? 1 : 0;
    }
    CHECK(settled > 100);
    CHECK(settled < 900);
}

TEST_CASE("what is cached begins no trial, and is never read past the cache") {
    PathTrial trial(small_trial, 1'000'000);
    for (int i = 0; i < 100; ++i) {
        const auto [path, counts] = trial.choose(false);
        CHECK(path == Path::pread);
        CHECK_FALSE(counts);
    }
    CHECK_FALSE(trial.is_settled());  // another part of the file may be cold

    // After a cold read, what was read ahead is to the credit of the cache.
    REQUIRE(trial.choose(true).counts);
    trial.add(Path::pread, 60, nanoseconds(6));
    CHECK(trial.choose(false).counts);
    trial.add(Path::pread, 60, nanoseconds(6));
    CHECK(trial.choose(false).path == Path::pread);
    CHECK_FALSE(trial.choose(false).counts);
    CHECK(trial.choose(true).path == Path::direct);

    run(trial, 100, 60, nanoseconds(6), nanoseconds(1));
    CHECK(trial.choose(true).path == Path::direct);
    CHECK(trial.choose(false).path == Path::pread);
    CHECK_FALSE(trial.choose(false).counts);

    // Bytes that were cached long before are not.
    PathTrial far({.trial = 64_MiB}, 1_GiB);
    far.add(Path::pread, 8_MiB, nanoseconds(24), 8_MiB);
    CHECK(far.choose(false, 8_MiB).counts);
    far.add(Path::pread, 8_MiB, nanoseconds(1));
    CHECK_FALSE(far.choose(false, 16_MiB).counts);
    CHECK(far.choose(true, 16_MiB).counts);
}

TEST_CASE("a slow start of the disk does not decide: each turn stands alone") {
    PathTrial trial(small_trial, 1'000'000);
    CHECK(run(trial, 6, 40, nanoseconds(80), nanoseconds(8)) == "pppddd");
    CHECK(run(trial, 20, 40, nanoseconds(4), nanoseconds(8)) == "pppdddpppppppppppppp");
    CHECK(trial.is_settled());
}

TEST_CASE("a file that was read once past the cache, or cannot be, is read through it") {
    PathTrial trial(small_trial, 1'000);
    const std::string paths = run(trial, 60, 40, nanoseconds(12), nanoseconds(10));
    CHECK(std::ranges::count(paths, 'd') == 25);
    CHECK(paths.back() == 'p');
    CHECK(trial.is_settled());

    PathTrial refused(small_trial, 1'000'000);
    run(refused, 4, 40, nanoseconds(12), nanoseconds(10));
    refused.refuse();
    CHECK(run(refused, 5, 40, nanoseconds(12), nanoseconds(10)) == "ppppp");
    CHECK(refused.is_settled());
}

namespace {

/// A disk whose reads take made-up time, and what was asked of it.
class Disk final : public Source {
public:
    static inline std::int64_t time = 0;  // nanoseconds

    explicit Disk(std::uint64_t size = 1'000'000) : size_(size) {}

    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return size_; }
    bool is_file() const noexcept override { return file; }
    std::string identity() const override { return identity_text; }
    void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
        if (fails) throw Error(Errc::io_error, "the disk is gone");
        time += usual_time;
        ++usual_reads;
        fill(offset, into);
    }
    bool read_direct(std::uint64_t offset, std::span<const std::span<std::byte>> into,
                     std::span<std::byte> scratch) const override {
        if (fails) throw Error(Errc::io_error, "the disk is gone");
        CHECK(scratch.size() >= 64_KiB);
        CHECK(reinterpret_cast<std::uintptr_t>(scratch.data()) % 4096 == 0);
        ++direct_reads;
        time += direct_time;
        if (!has_direct) return false;
        for (const std::span<std::byte> place : into) {
            fill(offset, place);
            offset += place.size();
        }
        return true;
    }
    Residency residency(Extent extent) const override {
        ++asked;
        asked_bytes += extent.size;
        if (!residency_known) throw Error(Errc::io_error, "cannot map it");
        return {extent.size * (extent.offset % cold_each < cold_at ? 100 : cached_percent) / 100, extent.size};
    }

    std::string identity_text = "disk";
    bool file = true;
    bool fails = false;
    bool has_direct = true;
    bool residency_known = true;
    std::uint64_t cached_percent = 0;
    std::uint64_t cold_each = 1;  // the first `cold_at` bytes of each so many bytes are cached
    std::uint64_t cold_at = 0;
    int usual_time = 1'000;
    int direct_time = 100;
    mutable int usual_reads = 0;
    mutable int direct_reads = 0;
    mutable int asked = 0;
    mutable std::uint64_t asked_bytes = 0;

private:
    static void fill(std::uint64_t offset, std::span<std::byte> into) {
        for (std::byte& byte : into) byte = pattern(1, offset++);
    }
    std::string name_ = "disk";
    std::uint64_t size_;
};

nanoseconds disk_time() { return nanoseconds(Disk::time); }
constexpr PathRules on_disk{
    .least_file = 500'000, .least_read = 1'000, .trial = 2'000, .margin = 120, .now = disk_time};

/// Reads of one size from the beginning of a source on.
struct Reading {
    explicit Reading(const Source& from, const PathRules& rules = on_disk) : source(from), paths(rules) {}

    void read(int times, std::size_t size = 1'000) {
        std::vector<std::byte> bytes(size);
        const std::span<std::byte> places[] = {std::span(bytes).first(size / 3), std::span(bytes).subspan(size / 3)};
        for (; times > 0; --times, offset += size) {
            paths.read(source, offset, places, worker);
            bool equal = true;
            for (std::size_t i = 0; i < size; ++i) equal = equal && bytes[i] == pattern(1, offset + i);
            REQUIRE(equal);
        }
    }
    UploadStats stats() const {
        UploadStats stats;
        paths.report(stats);
        return stats;
    }

    const Source& source;
    std::uint64_t offset = 0;
    Paths paths;
    Worker worker;
};

}  // namespace

TEST_CASE("cold blocks of a file are tried, and the stats have bytes and time by path") {
    const Disk disk;
    Reading reading(disk);
    reading.read(20);
    CHECK(disk.direct_reads == 16);  // all but two times two of the trial
    const auto stats = reading.stats();
    CHECK(stats.bytes_pread == 4'000);
    CHECK(stats.bytes_direct == 16'000);
    CHECK(stats.time_direct.count() == 16 * 100);
    CHECK(stats.time_pread.count() == 4 * 2 * 1'000);  // a call for each of two places
}

TEST_CASE("a disk that is not faster past the cache is not asked again") {
    Disk disk;
    disk.direct_time = 1'900;
    Reading reading(disk);
    reading.read(20);
    CHECK(disk.direct_reads == 2);
    CHECK(disk.asked == 4);
    CHECK(reading.stats().bytes_direct == 2'000);
    CHECK(reading.stats().bytes_pread == 18'000);
}

TEST_CASE("what is cached, small, of unknown residency or no file is read through the cache") {
    const auto direct_reads = [](const auto& change, std::size_t size = 1'000) {
        Disk disk;
        change(disk);
        Reading reading(disk);
        reading.read(20, size);
        CHECK(reading.stats().bytes_pread == 20 * size);
        CHECK(reading.stats().bytes_direct == 0);
        if (size < 1'000 || !disk.file) CHECK(disk.asked == 0);
        return disk.direct_reads;
    };
    CHECK(direct_reads([](Disk& disk) { disk.cached_percent = 100; }) == 0);
    CHECK(direct_reads([](Disk& disk) { disk.cached_percent = 25; }) == 0);
    CHECK(direct_reads([](Disk& disk) { disk.residency_known = false; }) == 0);
    CHECK(direct_reads([](Disk& disk) { disk.file = false; }) == 0);
    CHECK(direct_reads([](Disk&) {}, 999) == 0);
    CHECK(direct_reads([](Disk& disk) { disk.has_direct = false; }) == 1);

    const Disk small(499'999);
    Reading reading(small);
    reading.read(20);
    CHECK(small.direct_reads == 0);
    CHECK(small.asked == 0);
}

TEST_CASE("a little of a block may be cached: the kernel reads ahead") {
    Disk disk;
    disk.cached_percent = 24;
    Reading reading(disk);
    reading.read(20);
    CHECK(disk.direct_reads == 16);
}

TEST_CASE("of a large block, the kernel is asked for a sixteenth, and not for the beginning that it reads ahead") {
    constexpr std::size_t block = 1'024 * 1'024;
    constexpr PathRules rules{
        .least_file = 500'000, .least_read = 1'000, .trial = 2 * block, .margin = 120, .now = disk_time};
    const auto direct_reads = [&](std::uint64_t cold_at, std::uint64_t cached_percent = 0) {
        Disk disk(16 * block);
        disk.cold_each = block;
        disk.cold_at = cold_at;
        disk.cached_percent = cached_percent;
        Reading reading(disk, rules);
        reading.read(12, block);
        CHECK(disk.asked_bytes <= 12 * block / 16);
        return disk.direct_reads;
    };
    CHECK(direct_reads(0) == 8);
    CHECK(direct_reads(block / 4) == 8);
    CHECK(direct_reads(block / 2) == 0);
    CHECK(direct_reads(block) == 0);
    CHECK(direct_reads(0, 20) == 8);
    CHECK(direct_reads(0, 30) == 0);
}

TEST_CASE("the choice belongs to the file, not to the source, and another file has its own") {
    const Disk disk;
    Reading reading(disk);
    reading.read(8);
    const Disk again;
    Disk other;
    other.identity_text = "other";
    std::vector<std::byte> bytes(1'000);
    const std::span<std::byte> places[] = {bytes};
    reading.paths.read(again, 0, places, reading.worker);
    CHECK(again.direct_reads == 1);
    reading.paths.read(other, 0, places, reading.worker);
    CHECK(other.direct_reads == 0);
}

TEST_CASE("a read that fails is an error by both paths, and counts for nothing") {
    Disk disk;
    Reading reading(disk);
    for (const int before : {0, 2, 20}) {
        CAPTURE(before);
        disk.fails = false;
        reading.read(before);
        const auto stats = reading.stats();
        disk.fails = true;
        CHECK_FAULT(reading.read(1), Errc::io_error);
        CHECK(reading.stats().bytes_pread == stats.bytes_pread);
        CHECK(reading.stats().bytes_direct == stats.bytes_direct);
    }
}

}  // namespace paths_test
