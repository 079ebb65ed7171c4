// Compares elements as numbers, with a tolerance.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Whether elements of the dtype can be compared as numbers: floating-point, complex and integer dtypes.
bool has_numbers(Dtype dtype) noexcept;

struct Closeness {
    std::optional<std::uint64_t> first_apart = std::nullopt;  ///< the first element that is not close
    /// The largest |a - b|, of integers rounded to the nearest double. Infinite or NaN, where an infinity or a NaN
    /// stands against another value; a NaN counts as larger than all else.
    double max_abs = 0;
};

/// Compares the elements of `a` and `b`, of which there are as many. They are close if |a - b| <= atol + rtol * |b|, in
/// F64; differences of integers are exact. Complex numbers are close if both parts are. A NaN is close to every NaN,
/// an infinity to the same infinity only. has_numbers(dtype) holds; `atol` and `rtol` are finite and not negative.
Closeness compare_numbers(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b, double atol,
                          double rtol);

}  // namespace safemap::SAFEMAP_ABI
