// Tests SHA-256 against a slow reference, for any pieces, and the error of a build without SHA-256.
#include "base/sha256.hpp"

#include "base/encodings.hpp"
#include "doctest_safemap.hpp"
#include "torch/sha256.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
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

/// A hash of a caller: keeps all bytes, and counts itself.
class CallersSha256 final : public Sha256Stream {
public:
    CallersSha256() { ++begun; }
    void update(std::span<const std::byte> bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
    Sha256Digest digest() const override {
        const std::string digits = sha256(bytes_);
        Sha256Digest digest;
        for (std::size_t i = 0; i < digest.size(); ++i)
            digest[i] = static_cast<std::byte>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
        return digest;
    }

    static inline int begun = 0;

private:
    std::vector<std::byte> bytes_;
};

}  // namespace

TEST_CASE("a caller's SHA-256 replaces that of libcrypto, and null brings it back") {
    set_sha256([]() -> std::unique_ptr<Sha256Stream> { return std::make_unique<CallersSha256>(); });
    const int before = CallersSha256::begun;
    Sha256 sha;
    sha.update(std::as_bytes(std::span(std::string_view("ab"))));
    sha.update(std::as_bytes(std::span(std::string_view("c"))));
    CHECK(hex(sha.digest()) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    set_sha256(nullptr);
    [[maybe_unused]] const auto other = hash();
    CHECK(CallersSha256::begun == before + 1);
}

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
