// Sizes and places in bytes, and the only arithmetic that numbers from files may go through.
#pragma once

#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace safemap::SAFEMAP_ABI {

/// a + b, or nothing where it does not fit in 64 bits.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
    return sum;
}

/// a × b, or nothing where it does not fit in 64 bits.
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
    return product;
}

/// A range of bytes: [offset, offset + size).
struct Extent {
    std::uint64_t offset = 0;
    std::uint64_t size = 0;

    /// Whether the range lies within [0, length). Cannot wrap.
    constexpr bool inside(std::uint64_t length) const noexcept { return offset <= length && size <= length - offset; }
    /// One past the last byte. Only for an extent that is inside something.
    constexpr std::uint64_t end() const noexcept { return offset + size; }

    friend constexpr bool operator==(const Extent&, const Extent&) = default;
};

/// 5_GB is 5·10^9 bytes, 5_GiB is 5·2^30.
inline namespace literals {
constexpr std::uint64_t operator""_KB(unsigned long long n) noexcept { return n * 1'000; }
constexpr std::uint64_t operator""_MB(unsigned long long n) noexcept { return n * 1'000'000; }
constexpr std::uint64_t operator""_GB(unsigned long long n) noexcept { return n * 1'000'000'000; }
constexpr std::uint64_t operator""_KiB(unsigned long long n) noexcept { return n << 10; }
constexpr std::uint64_t operator""_MiB(unsigned long long n) noexcept { return n << 20; }
constexpr std::uint64_t operator""_GiB(unsigned long long n) noexcept { return n << 30; }
}  // namespace literals

}  // namespace safemap::SAFEMAP_ABI
