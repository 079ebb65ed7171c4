// The slow reference for casts: searches the nearest of all values of a format. Shares no code with the kernels.
#pragma once

#include <safemap/dtype.hpp>

#include <cstdint>
#include <vector>

namespace reference {

/// The result of casting one value.
struct Cast {
    std::uint64_t bits = 0;
    bool overflowed = false;
    bool non_finite = false;
};

/// A format of 8 or 16 bits, as the list of all its values.
class SlowFormat {
public:
    static const SlowFormat& of(safemap::Dtype dtype);

    /// Returns the finite non-negative values in ascending order, which is the order of their bits.
    const std::vector<double>& values() const { return values_; }

    /// Returns the value as the bits of an F32.
    std::uint32_t to_f32(std::uint32_t raw) const;

    Cast from_f32(std::uint32_t f32) const;

private:
    using Decode = float (*)(std::uint32_t);

    SlowFormat(safemap::Dtype dtype, std::uint32_t values, std::uint32_t beyond, Decode decoder);

    unsigned bits() const { return static_cast<unsigned>(8 * safemap::element_size(dtype_)); }
    bool fnuz() const { return beyond_ == 0x80; }

    std::uint32_t with_sign(std::uint32_t magnitude, std::uint32_t sign) const {
        return fnuz() && magnitude == 0 ? 0 : magnitude | sign;
    }

    std::uint32_t nan(std::uint32_t f32, std::uint32_t sign) const;

    // Returns the index of the nearest value, the even one of two; one past the last if an additional value would be
    // nearest.
    std::uint32_t search(double magnitude) const;

    safemap::Dtype dtype_;
    std::uint32_t beyond_;  // the result for magnitudes beyond the range
    Decode decode_;
    std::vector<double> values_;
};

/// Casts the bits of one element. F64 goes through F32, as in torch.
Cast slow_cast(safemap::Dtype from, std::uint64_t raw, safemap::Dtype to);

}  // namespace reference
