// Tests deflated sources: reads in any order, damaged streams, wrong sizes or checksums, the memory that is kept, and
// long reads that are stopped.
#include "base/inflate.hpp"
#include "base/checksum.hpp"
#include "base/pool.hpp"
#include "base/stream_source.hpp"
#include "doctest_safemap.hpp"
#include "forge/zip.hpp"
#include "soak.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

namespace inflate_test {

using namespace safemap;

namespace {

std::vector<std::byte> compressible(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> out(n);
    for (auto& b : out) b = static_cast<std::byte>(random() % 5);
    return out;
}

/// Returns bytes that deflate quickly, by a quarter.
std::vector<std::byte> noisy(std::size_t n) {
    std::mt19937 random(5);
    std::vector<std::byte> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(i % 4 == 3 ? 0 : random());
    return out;
}

constexpr std::size_t block = StreamIndex::block;

/// Bytes of several blocks, and their stream. Made once, because deflate is slow.
struct Large {
    std::vector<std::byte> data = noisy(6 * block + 12'345);
    std::vector<std::byte> packed = forge::deflated(data);
    std::uint32_t crc = crc32(0, data);

    static const Large& get() {
        static const Large large;
        return large;
    }
    Extent place() const { return {0, packed.size()}; }
    std::shared_ptr<const Source> open(std::shared_ptr<const Source> file) const {
        return inflated_source("r", std::move(file), place(), data.size(), crc);
    }
    std::shared_ptr<const Source> open() const { return open(memory_source("zip", packed)); }
    bool same(std::span<const std::byte> found, std::size_t offset) const {
        return std::equal(found.begin(), found.end(), data.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    /// Reads a range and compares it.
    bool reads(const Source& source, std::size_t offset, std::size_t size) const {
        std::vector<std::byte> out(size);
        source.read_at(offset, out);
        return same(out, offset);
    }
};

std::size_t states(const std::shared_ptr<const Source>& source) {
    return dynamic_cast<const StreamSource&>(*source).states();
}

/// A source that counts the bytes that are read of it, and may do something before each read.
std::shared_ptr<const Source> counted(const std::vector<std::byte>& bytes, std::atomic<std::uint64_t>& count,
                                      std::function<void()> before = {}) {
    return callback_source(
        "zip", bytes.size(), [&bytes, &count, before](std::uint64_t offset, std::span<std::byte> into) {
            if (before) before();
            count += into.size();
            std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
        });
}

}  // namespace

TEST_CASE("slices further and further back inflate each block once, after one pass") {
    const Large& large = Large::get();
    std::atomic<std::uint64_t> count = 0;
    const auto source = large.open(counted(large.packed, count));
    constexpr std::size_t slices = 2000;
    const std::size_t each = large.data.size() / slices;
    for (std::size_t i = slices; i-- > 0;) REQUIRE(large.reads(*source, i * each, each));
    CHECK(states(source) == 6);
    // Each time that the inflater goes on from a state, it reads a block of input again.
    CHECK(count <= 2 * large.packed.size() + 9 * (64 << 10));

    // The last byte first: then its checksum was compared.
    count = 0;
    for (std::size_t i = 1; i <= slices; ++i) REQUIRE(large.reads(*source, large.data.size() - i * each, each));
    CHECK(count <= large.packed.size() + 9 * (64 << 10));
}

TEST_CASE("random reads of any size are those of the whole, and a state is near each of them") {
    const Large& large = Large::get();
    const unsigned seed = soak::seed(7);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int rounds = soak::rounds(24);
    for (int round = 0; round < rounds; ++round) {
        std::atomic<std::uint64_t> count = 0;
        const auto source = large.open(counted(large.packed, count));
        for (int i = 0; i < 60; ++i) {
            const std::size_t most = i % 7 == 0 ? large.data.size() : i % 3 == 0 ? 3000 : 2 * block;
            const std::size_t offset = i % 11 == 0 ? large.data.size() - 1 : random() % large.data.size();
            const std::size_t size = 1 + random() % std::min(most, large.data.size() - offset);
            CAPTURE(offset);
            CAPTURE(size);
            REQUIRE(large.reads(*source, offset, size));
        }
        count = 0;
        CHECK(large.reads(*source, 3 * block + 5, 10));
        CHECK(count <= 2 * block);
    }
}

TEST_CASE("a stream that is read in order keeps nothing") {
    const Large& large = Large::get();
    const std::uint64_t before = StreamSource::all_kept();
    const auto source = large.open();
    for (std::size_t offset = 0; offset < large.data.size(); offset += 100'000) {
        REQUIRE(large.reads(*source, offset, std::min<std::size_t>(100'000, large.data.size() - offset)));
        REQUIRE(states(source) == 0);
    }
    CHECK(StreamSource::all_kept() == before);
}

TEST_CASE("the memory of all streams has one limit, and is given back") {
    const Large& large = Large::get();
    const std::uint64_t before = StreamSource::all_kept();
    {
        std::vector<std::shared_ptr<const Source>> sources;
        const auto file = memory_source("zip", large.packed);
        for (int i = 0; i < 24; ++i) {
            sources.push_back(large.open(file));
            REQUIRE(large.reads(*sources.back(), 5 * block, 1000));
            REQUIRE(large.reads(*sources.back(), 4 * block, 1000));
            CHECK(StreamSource::all_kept() <= StreamSource::kept_limit);
        }
        CHECK(StreamSource::all_kept() > StreamSource::kept_limit / 2);
        for (std::size_t i = 0; i < 48; ++i) REQUIRE(large.reads(*sources[i * 7 % 24], (i * 13 % 59) * 100'000, 5000));
        CHECK(StreamSource::all_kept() <= StreamSource::kept_limit);
        CHECK_FAULT(large.reads(*inflated_source("r", file, {0, 1000}, large.data.size()), 5 * block, 1),
                    Errc::inflate_failed);
    }
    CHECK(StreamSource::all_kept() == before);
}

TEST_CASE("reads of a damaged stream in any order fail exactly where a first read fails") {
    const Large& large = Large::get();
    const unsigned seed = soak::seed(8);
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int rounds = soak::rounds(40);
    for (int round = 0; round < rounds; ++round) {
        auto damaged = large.packed;
        const std::size_t at = random() % damaged.size();
        if (round % 3 == 0) damaged.resize(at);
        else damaged[at] ^= std::byte{1} << random() % 8;
        CAPTURE(at);
        const auto file = memory_source("zip", damaged);
        const auto open = [&] { return inflated_source("r", file, {0, damaged.size()}, large.data.size(), large.crc); };
        const auto source = open();
        for (int i = 0; i < 12; ++i) {
            const std::size_t offset = random() % large.data.size();
            std::vector<std::byte> found(1 + random() % std::min<std::size_t>(100'000, large.data.size() - offset));
            std::vector<std::byte> wanted(found.size());
            CAPTURE(offset);
            CAPTURE(found.size());
            const auto fault = error_of([&] { source->read_at(offset, found); });
            const auto first = error_of([&] { open()->read_at(offset, wanted); });
            REQUIRE(fault.has_value() == first.has_value());
            if (fault) CHECK(fault->code() == first->code());
            else CHECK(found == wanted);
        }
    }
}

TEST_CASE("after a read of the file that fails, reads go on") {
    const Large& large = Large::get();
    const std::uint64_t before = StreamSource::all_kept();
    int left = 0;
    std::atomic<std::uint64_t> count = 0;
    const auto source = large.open(counted(large.packed, count, [&] {
        if (left-- == 0) throw Error(Errc::io_error, "the disk fails");
    }));
    std::mt19937 random(9);
    int failed = 0;
    for (int i = 0; i < 200; ++i) {
        left = i % 10;
        const std::size_t offset = random() % (large.data.size() - 1000);
        std::vector<std::byte> out(1000);
        const auto error = error_of([&] { source->read_at(offset, out); });
        if (error) CHECK(error->code() == Errc::io_error);
        else REQUIRE(large.same(out, offset));
        failed += error ? 1 : 0;
    }
    CHECK(failed > 20);
    left = -1;
    CHECK(large.reads(*source, 0, large.data.size()));
    CHECK(StreamSource::all_kept() <= before + StreamSource::kept_limit);
}

TEST_CASE("one stream is read from several threads") {
    const Large& large = Large::get();
    const auto source = large.open();
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t)
        threads.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int i = 0; i < 10; ++i)
                if (!large.reads(*source, random() % (large.data.size() - 5000), 5000)) ++wrong;
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
}

TEST_CASE("a loop that is stopped ends its long reads, and the stream is whole afterwards") {
    using namespace std::chrono_literals;
    const Large& large = Large::get();
    for (const unsigned threads : {1U, 2U}) {
        CAPTURE(threads);
        std::atomic<std::uint64_t> count = 0;
        std::atomic<bool> slow = true;
        const auto source = large.open(counted(large.packed, count, [&] {
            if (slow) std::this_thread::sleep_for(10ms);
        }));
        std::atomic<int> ended = 0;
        const auto caller = std::this_thread::get_id();
        int ticks = 0;
        const auto stop = [&] {
            CHECK(std::this_thread::get_id() == caller);
            // The function may read the same stream.
            if (++ticks == 2) CHECK(large.reads(*source, 0, 10));
            if (ticks == 3) throw std::runtime_error("stop");
        };
        const auto read = [&](std::size_t i, unsigned) {
            static_cast<void>(large.reads(*source, large.data.size() - 10 - i, 10));
            ++ended;
        };
        CHECK_THROWS_AS(parallel_for(threads, threads, read, stop), std::runtime_error);
        CHECK(ended == 0);
        CHECK(count < large.packed.size());
        slow = false;
        CHECK(large.reads(*source, 0, large.data.size()));
    }
}

TEST_CASE("an inflated source reads any range in any order") {
    const auto data = compressible(300'000, 1);
    auto packed = forge::deflated(data);
    const std::uint64_t size = packed.size();
    packed.insert(packed.begin(), 100, std::byte{0xAA});  // the stream is in the middle of the file
    packed.insert(packed.end(), 100, std::byte{0xBB});
    const auto source = inflated_source("a/data/0", memory_source("zip", packed), {100, size}, data.size());
    std::mt19937 random(2);
    for (int i = 0; i < 60; ++i) {
        const std::size_t offset = random() % data.size();
        std::vector<std::byte> out(random() % (data.size() - offset + 1));
        source->read_at(offset, out);
        CHECK(std::equal(out.begin(), out.end(), data.begin() + static_cast<std::ptrdiff_t>(offset)));
    }
    CHECK_FALSE(source->map({0, 1}));
}

TEST_CASE("a stream that is truncated, damaged or shorter than stated is a fault") {
    const auto data = compressible(50'000, 3);
    const auto packed = forge::deflated(data);
    std::vector<std::byte> out(data.size());
    for (std::size_t cut = 0; cut < packed.size(); cut += 1 + packed.size() / 97) {
        CAPTURE(cut);
        const auto source = inflated_source("r", memory_source("zip", packed), {0, cut}, data.size());
        CHECK_FAULT(source->read_at(0, out), Errc::inflate_failed);
        CHECK_FAULT(source->read_at(data.size() - 1, std::span(out).first(1)), Errc::inflate_failed);
    }
    const auto shorter = inflated_source("r", memory_source("zip", packed), {0, packed.size()}, data.size() - 1);
    CHECK_FAULT(shorter->read_at(0, std::span(out).first(data.size() - 1)), Errc::inflate_failed);
    const auto longer = inflated_source("r", memory_source("zip", packed), {0, packed.size()}, data.size() + 1);
    out.resize(data.size() + 1);
    CHECK_FAULT(longer->read_at(0, out), Errc::inflate_failed);
    CHECK_FAULT(longer->read_at(data.size() + 1, out), Errc::file_truncated);
    CHECK_FAULT(inflated_source("r", memory_source("zip", packed), {1, packed.size()}, 1), Errc::file_truncated);
    std::vector<std::byte> garbage(1000, std::byte{0xFF});
    CHECK_FAULT(
        inflated_source("r", memory_source("zip", garbage), {0, 1000}, 1000)->read_at(0, std::span(out).first(1000)),
        Errc::inflate_failed);
}

TEST_CASE("a stream with a wrong checksum is a fault when its last byte is read, whatever was read before") {
    const auto data = compressible(200'000, 4);
    const auto packed = forge::deflated(data);
    const std::uint32_t right = crc32(0, data);
    const auto with = [&](std::uint32_t crc) {
        return inflated_source("a/data/0", memory_source("zip", packed), {0, packed.size()}, data.size(), crc);
    };
    std::vector<std::byte> out(data.size());
    const auto read = [&](const Source& source, std::size_t offset, std::size_t size) {
        source.read_at(offset, std::span(out).first(size));
    };
    const auto sound = with(right);
    CHECK_OK(read(*sound, 0, data.size()));
    CHECK_OK(read(*sound, data.size() - 1, 1));
    CHECK_OK(read(*sound, 100'000, 100'000));

    const auto wrong = with(right ^ 1);
    CHECK_OK(read(*wrong, 0, data.size() - 1));
    CHECK_FAULT(read(*wrong, data.size() - 1, 1), Errc::checksum_mismatch);
    CHECK_OK(read(*wrong, 100'000, 1000));
    CHECK_OK(read(*wrong, 7, 1));
    CHECK_FAULT(read(*wrong, 100'000, 100'000), Errc::checksum_mismatch);
    CHECK_FAULT(read(*wrong, 0, data.size()), Errc::checksum_mismatch);
    try {
        read(*wrong, 0, data.size());
    } catch (const Error& error) {
        CHECK(error.path() == "zip");
        CHECK(error.message().find("'a/data/0'") != std::string::npos);
    }
}

}  // namespace inflate_test
