// Checksums of bytes that stream past.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace safemap {

/// XXH3 with 128 bits and the default secret.
class Xxh3 {
public:
    Xxh3();
    ~Xxh3();
    Xxh3(Xxh3&&) noexcept;
    Xxh3& operator=(Xxh3&&) noexcept;

    void update(std::span<const std::byte> bytes);
    /// 32 hex digits, canonical (big-endian) byte order. May be asked for at any time.
    std::string hex() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// CRC-32 as in zip and zlib: start with 0 and feed the result back in.
std::uint32_t crc32(std::uint32_t crc, std::span<const std::byte> bytes) noexcept;

}  // namespace safemap
