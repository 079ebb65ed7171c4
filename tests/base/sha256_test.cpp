// Tests SHA-256 against a slow reference, for any pieces, and the error of a build without SHA-256.
#include "base/sha256.hpp"

#include "base/encodings.hpp"
#include "doctest_safemap.hpp"
#include "torch/sha256.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

namespace sha256_test {

using namespace safemap;

namespace {

/// Returns a hash, or nothing if this build has no SHA-256.
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
    CHECK(hex(sha->digest()) == hex(sha->digest()));  // digest() does not change the state
}

TEST_CASE("SHA-256 does not depend on the pieces, and agrees with a slow reference") {
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

}  // namespace sha256_test
