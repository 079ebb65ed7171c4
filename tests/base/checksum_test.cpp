// Tests checksums against published values.
#include "base/checksum.hpp"
#include "doctest_safemap.hpp"

#include <string_view>
#include <vector>

namespace checksum_test {

using namespace safemap;

namespace {
std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
}  // namespace

TEST_CASE("XXH3-128 gives the values of the reference implementation") {
    CHECK(Xxh3().hex() == "99aa06d3014798d86001c324468d497f");  // the empty input, as `xxhsum -H2` prints it
    Xxh3 hash;
    hash.update(bytes_of("abc"));
    CHECK(hash.hex() == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("a digest is parsed from its 32 digits, and nothing else is") {
    const Digest digest = xxh3(bytes_of("abc"));
    CHECK(hex(digest) == "06b05ab6733a618578af5f94892f3950");
    CHECK(digest_of_hex("06b05ab6733a618578af5f94892f3950") == digest);
    for (const auto* text : {"", "06b05ab6733a618578af5f94892f395", "06b05ab6733a618578af5f94892f39500",
                             "06B05ab6733a618578af5f94892f3950", "06b05ab6733a618578af5f94892f395 "})
        CHECK_FALSE(digest_of_hex(text));
}

TEST_CASE("a digest does not depend on how the bytes are split into calls") {
    std::vector<std::byte> data(100'000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 >> 3);
    Xxh3 whole;
    whole.update(data);
    for (const std::size_t step : {1U, 7U, 4096U, 65536U}) {
        Xxh3 parts;
        std::uint32_t crc = 0;
        for (std::size_t i = 0; i < data.size(); i += step) {
            const auto part = std::span(data).subspan(i, std::min(step, data.size() - i));
            parts.update(part);
            crc = crc32(crc, part);
        }
        CHECK(parts.hex() == whole.hex());
        CHECK(parts.digest() == xxh3(data));
        CHECK(crc == crc32(0, data));
    }
}

TEST_CASE("CRC-32 gives the check value of the zip specification") {
    CHECK(crc32(0, bytes_of("123456789")) == 0xCBF43926U);
}

}  // namespace checksum_test
