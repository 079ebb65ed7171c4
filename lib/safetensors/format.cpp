// Computes sizes of values, and describes values in messages.
#include "safetensors/format.hpp"

#include "base/checked.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/error.hpp>

namespace safemap::SAFEMAP_ABI::safetensors {

std::string kind_text(Dtype dtype, const Shape& shape) {
    constexpr std::size_t most = 16;
    const std::string of = " of " + std::string(name(dtype));
    if (shape.size() <= most) return "shape " + to_string(shape) + of;
    return "a shape of " + std::to_string(shape.size()) + " dimensions" + of;
}

std::uint64_t value_bytes(Dtype dtype, const Shape& shape) {
    const auto elements = element_count(shape);
    const auto total_bits = elements ? checked_mul(*elements, bits(dtype)) : std::nullopt;
    if (!total_bits)
        throw Error(Errc::shape_overflow, kind_text(dtype, shape) + " has a size that does not fit in 64 bits");
    if (*total_bits % 8 != 0)
        throw Error(Errc::partial_byte, kind_text(dtype, shape) + " has " + std::to_string(*total_bits) +
                                            " bits, which is not a whole number of bytes");
    return *total_bits / 8;
}

}  // namespace safemap::SAFEMAP_ABI::safetensors
