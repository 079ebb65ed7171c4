// Hashes parts of a file. Tested by tests/open/stale_copy_test.cpp.
#include "state/fingerprint.hpp"

#include "base/checksum.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

namespace {

constexpr std::uint64_t first_bytes = 64 << 10;
constexpr std::uint64_t last_bytes = 1 << 20;
constexpr std::uint64_t block = 4 << 10;
constexpr std::uint64_t blocks = 64;

}  // namespace

std::string state::fingerprint(const Source& source) {
    const std::uint64_t size = source.size();
    std::vector<std::byte> buffer(last_bytes);
    Xxh3 hash;
    std::array<std::byte, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(size >> (8 * i) & 0xFF);
    hash.update(length);
    const auto update = [&](std::uint64_t offset, std::uint64_t bytes) {
        const std::span part(buffer.data(), bytes);
        source.read_at(offset, part);
        hash.update(part);
    };
    if (size <= first_bytes + blocks * block + last_bytes) {
        for (std::uint64_t at = 0; at < size; at += last_bytes) update(at, std::min(last_bytes, size - at));
        return hash.hex();
    }
    update(0, first_bytes);
    const std::uint64_t between = size - first_bytes - last_bytes - block;
    for (std::uint64_t i = 0; i < blocks; ++i) update(first_bytes + between / (blocks - 1) * i, block);
    update(size - last_bytes, last_bytes);
    return hash.hex();
}

}  // namespace safemap::SAFEMAP_ABI
