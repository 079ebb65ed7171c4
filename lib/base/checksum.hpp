// Checksums of bytes that stream past.
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

/// 32 digits.
std::string hex(const Digest& digest);
/// What hex() gave; nothing for any other text.
std::optional<Digest> digest_of_hex(std::string_view text) noexcept;

/// XXH3 with 128 bits and the default secret.
class Xxh3 {
public:
    Xxh3();
    ~Xxh3();
    Xxh3(Xxh3&&) noexcept;
    Xxh3& operator=(Xxh3&&) noexcept;

    void update(std::span<const std::byte> bytes);
    /// May be asked for at any time.
    Digest digest() const noexcept;
    std::string hex() const { return safemap::hex(digest()); }

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// The same of bytes that are all there.
Digest xxh3(std::span<const std::byte> bytes) noexcept;

/// CRC-32 as in zip and zlib: start with 0 and feed the result back in.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;
/// The checksum_mismatch of a zip record whose data has the CRC-32 `found`.
Error crc32_mismatch(std::string_view record, std::uint32_t found, std::uint32_t stored);

}  // namespace safemap::SAFEMAP_ABI
