// Streaming checksums: XXH3 and CRC-32.
#pragma once

#include <safemap/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// 128 bits in canonical (big-endian) byte order.
using Digest = std::array<std::byte, 16>;

/// Returns 32 hexadecimal digits.
std::string hex(const Digest& digest);
/// Returns the digest of a text from hex(); nothing for any other text.
std::optional<Digest> digest_of_hex(std::string_view text) noexcept;

/// A streaming XXH3 hash of 128 bits with the default secret.
class Xxh3 {
public:
    Xxh3();
    ~Xxh3();
    Xxh3(Xxh3&&) noexcept;
    Xxh3& operator=(Xxh3&&) noexcept;

    void update(std::span<const std::byte> bytes);
    /// Returns the digest of all bytes so far. May be called at any time.
    Digest digest() const noexcept;
    std::string hex() const { return safemap::hex(digest()); }

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Returns the digest of bytes that are all in memory.
Digest xxh3(std::span<const std::byte> bytes) noexcept;

/// Updates a CRC-32 as in zip and zlib: pass 0 first, then the previous result.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;
/// Returns the error checksum_mismatch of a zip record whose data has the CRC-32 `found`.
Error crc32_mismatch(std::string_view record, std::uint32_t found, std::uint32_t stored);

}  // namespace safemap::SAFEMAP_ABI
