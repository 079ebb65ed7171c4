// Extent, a range of bytes, and literals for sizes in bytes.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// A range of bytes: [offset, offset + size).
///
/// Example:
///     constexpr safemap::Extent header{.offset = 8, .size = 1000};
///     static_assert(header.inside(2_KiB) && !header.inside(1000));
///     static_assert(header.end() == 1008);
struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;

    /// Returns true if the range is within [0, length). Cannot overflow.
    [[nodiscard]] constexpr bool inside(std::uint64_t length) const noexcept {
        return offset <= length && size <= length - offset;
    }
    /// Returns the offset one past the last byte. Call it only if the extent is known to be inside a length.
    constexpr std::uint64_t end() const noexcept { return offset + size; }

    friend constexpr bool operator==(const Extent&, const Extent&) = default;
};

/// Literals for sizes in bytes: 5_GB is 5·10^9 bytes, 5_GiB is 5·2^30 bytes.
inline namespace literals {
constexpr std::uint64_t operator""_KB(unsigned long long n) noexcept { return n * 1'000; }
constexpr std::uint64_t operator""_MB(unsigned long long n) noexcept { return n * 1'000'000; }
constexpr std::uint64_t operator""_GB(unsigned long long n) noexcept { return n * 1'000'000'000; }
constexpr std::uint64_t operator""_KiB(unsigned long long n) noexcept { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) noexcept { return n << 20; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) noexcept { return n << 30; }
}  // namespace literals

}  // namespace safemap::SAFEMAP_ABI
