// Tests deflated sources: reads in any order, damaged streams, and wrong sizes or checksums.
#include "base/inflate.hpp"
#include "base/checksum.hpp"
#include "deflate.hpp"
#include "doctest_safemap.hpp"

#include <random>
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

}  // namespace

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
