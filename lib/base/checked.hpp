// Checked arithmetic for numbers that come from files. Nothing else may compute with them, except Extent::inside().
#pragma once

#include <safemap/bytes.hpp>

#include <cstdint>
#include <optional>

namespace safemap::SAFEMAP_ABI {

/// Returns a + b, or nothing if it does not fit in 64 bits.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
    return sum;
}

/// Returns a × b, or nothing if it does not fit in 64 bits.
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
    return product;
}

}  // namespace safemap::SAFEMAP_ABI
