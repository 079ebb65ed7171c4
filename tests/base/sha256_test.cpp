// SHA-256 beside a slow twin, whatever the pieces; and what a build without it says.
#include "base/sha256.hpp"

#include "base/hex.hpp"
#include "doctest_safemap.hpp"
#include "torch/sha256.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

using namespace safemap;

namespace {

/// Nothing where the build has none.
std::optional<Sha256> hash() {
    try {
        return Sha256();
    } catch (const Error& error) {
        CHECK(error.code() == Errc::invalid_argument);
        CHECK(error.hint().find("-Dsha256=enabled") != std::string::npos);
        return std::nullopt;
    }
}

}  // namespace

TEST_CASE("SHA-256 of known texts is what FIPS 180-4 says") {
    auto sha = hash();
    if (!sha) return;
    CHECK(hex(sha->digest()) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha->update(std::as_bytes(std::span(std::string_view("abc"))));
    CHECK(hex(sha->digest()) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(sha->digest()) == hex(sha->digest()));  // asking changes nothing
}

TEST_CASE("SHA-256 in any pieces is that of a slow twin") {
    if (!hash()) return;
    std::random_device device;
    const unsigned seed = device();
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 50; ++round) {
        std::vector<std::byte> bytes(random() % 2'000);
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
        Sha256 sha;
        for (std::size_t at = 0; at < bytes.size();) {
            const std::size_t size = std::min<std::size_t>(random() % 300, bytes.size() - at);
            sha.update(std::span(bytes).subspan(at, size));
            at += size;
        }
        CHECK(hex(sha.digest()) == sha256(bytes));
    }
}
