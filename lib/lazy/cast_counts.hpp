// Statistics of casts.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI {

/// The number of values that a cast converted, and of special values among them.
struct CastCounts {
    std::uint64_t values = 0;      ///< all values that were cast
    std::uint64_t overflowed = 0;  ///< finite before, beyond the range of the new dtype
    std::uint64_t non_finite = 0;  ///< NaN or infinite before the cast

    CastCounts& operator+=(const CastCounts& other) noexcept {
        values += other.values;
        overflowed += other.overflowed;
        non_finite += other.non_finite;
        return *this;
    }
};

}  // namespace safemap::SAFEMAP_ABI
