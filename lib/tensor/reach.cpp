// Computes the reach of strided views.
#include "tensor/reach.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <string>

namespace safemap::SAFEMAP_ABI {

std::optional<Reach> reach_of(const StridedView& view) noexcept {
    Reach reach{view.offset, view.offset};
    for (std::size_t d = 0; d < view.shape.size(); ++d) {
        std::int64_t steps = 0;
        std::int64_t distance = 0;
        if (__builtin_sub_overflow(view.shape[d], std::uint64_t{1}, &steps)) return std::nullopt;
        if (__builtin_mul_overflow(steps, view.strides[d], &distance)) return std::nullopt;
        std::int64_t& end = distance < 0 ? reach.first : reach.last;
        if (__builtin_add_overflow(end, distance, &end)) return std::nullopt;
    }
    return reach;
}

std::int64_t index_in_dimension(std::int64_t asked, std::uint64_t dimension, std::size_t axis) {
    // A dimension above 2^63 is possible only if another dimension is 0.
    const auto length = static_cast<std::int64_t>(std::min<std::uint64_t>(dimension, INT64_MAX));
    const std::int64_t index = asked < 0 && asked >= -length ? asked + length : asked;
    if (index >= 0 && index < length) return index;
    throw Error(Errc::index_out_of_range, "index " + std::to_string(asked) + " is outside dimension " +
                                              std::to_string(axis) + " of size " + std::to_string(dimension));
}

bool cuts_whole_bytes(Dtype dtype, const StridedView& view) noexcept {
    if (std::find(view.shape.begin(), view.shape.end(), 0U) != view.shape.end()) return true;
    const auto width = static_cast<std::int64_t>(bits(dtype));
    // Trailing dimensions without gaps form one range.
    std::int64_t range = 1;
    std::size_t outer = view.shape.size();
    while (outer > 0 && (view.shape[outer - 1] == 1 || view.strides[outer - 1] == range)) {
        --outer;
        range *= static_cast<std::int64_t>(view.shape[outer]);
    }
    if (range * width % 8 != 0 || view.offset * width % 8 != 0) return false;
    for (std::size_t d = 0; d < outer; ++d)
        if (view.shape[d] > 1 && view.strides[d] * width % 8 != 0) return false;
    return true;
}

}  // namespace safemap::SAFEMAP_ABI
