// Computes checksums with xxHash and zlib. No other file includes xxHash.
#include "base/checksum.hpp"

#include "base/encodings.hpp"
#include "base/text.hpp"

#include <xxhash.h>
#include <zlib.h>

#include <bit>
#include <new>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::string_view digits = "0123456789abcdef";

std::string hex32(std::uint32_t number) {
    std::string text;
    for (int shift = 28; shift >= 0; shift -= 4) text += digits[number >> shift & 15];
    return text;
}

Digest canonical(XXH128_hash_t hash) noexcept {
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, hash);
    return std::bit_cast<Digest>(bytes.digest);
}

}  // namespace

std::string hex(const Digest& digest) { return hex(std::span<const std::byte>(digest)); }

std::optional<Digest> digest_of_hex(std::string_view text) noexcept {
    Digest digest;
    if (text.size() != 2 * digest.size()) return std::nullopt;
    for (std::size_t i = 0; i < digest.size(); ++i) {
        const std::size_t high = digits.find(text[2 * i]);
        const std::size_t low = digits.find(text[2 * i + 1]);
        if (high == digits.npos || low == digits.npos) return std::nullopt;
        digest[i] = static_cast<std::byte>(high << 4 | low);
    }
    return digest;
}

struct Xxh3::State {
    State() : xxh(XXH3_createState()) {
        if (xxh == nullptr) throw std::bad_alloc();
        XXH3_128bits_reset(xxh);
    }
    ~State() { XXH3_freeState(xxh); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    XXH3_state_t* xxh;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::update(std::span<const std::byte> bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }

Digest Xxh3::digest() const noexcept { return canonical(XXH3_128bits_digest(state_->xxh)); }

Digest xxh3(std::span<const std::byte> bytes) noexcept { return canonical(XXH3_128bits(bytes.data(), bytes.size())); }

std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept {
    return static_cast<std::uint32_t>(
        ::crc32_z(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

Error crc32_mismatch(std::string_view record, std::uint32_t found, std::uint32_t stored) {
    return {Errc::checksum_mismatch, "record " + safemap::quoted(record) + ": the data has CRC-32 " + hex32(found) +
                                         ", expected " + hex32(stored)};
}

}  // namespace safemap::SAFEMAP_ABI
