// Compares elements as numbers, with a tolerance.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Returns true if elements of the dtype can be compared as numbers: floating-point, complex and integer dtypes.
bool has_numbers(Dtype dtype) noexcept;

struct Closeness {
    std::optional<std::uint64_t> first_apart = std::nullopt;  ///< first element that is not close
    /// The largest |a - b|; for integers rounded to the nearest double. Infinite or NaN if an infinity or a NaN is
    /// compared with another value; a NaN counts as larger than everything else.
    double max_abs = 0;
};

/// Compares the elements of `a` and `b`, which have equal counts. Elements are close if |a - b| <= atol + rtol * |b| in
/// F64; differences of integers are exact. Complex numbers are close if both parts are. A NaN is close to every NaN, an
/// infinity only to the same infinity. Requires has_numbers(dtype), and `atol` and `rtol` finite and not negative.
Closeness compare_numbers(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b, double atol,
                          double rtol);

}  // namespace safemap::SAFEMAP_ABI
