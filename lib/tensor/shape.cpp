// Implements shapes, strides and Python's slices.
#include <safemap/shape.hpp>

#include "base/checked.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/strides.hpp>
#include <safemap/bytes.hpp>
#include <safemap/error.hpp>

#include <ostream>

namespace safemap::SAFEMAP_ABI {
namespace {

using Index = std::int64_t;

// The elements of Python's slice.indices(length) (CPython, PySlice_AdjustIndices).
struct Range {
    Index first;
    Index step;
    std::uint64_t count;
};

// Clamps a dimension. One above 2^63 is possible only if another dimension is 0, and then there are no elements to
// distinguish.
Index as_index(std::uint64_t dimension) { return static_cast<Index>(std::min<std::uint64_t>(dimension, INT64_MAX)); }

Index clip(Index bound, Index length, Index low, Index high) {
    if (bound < 0) bound = bound < -length ? low : bound + length;
    return std::clamp(bound, low, high);
}

Range resolve(const Slice& slice, std::uint64_t dimension) {
    if (slice.step == 0) throw Error(Errc::invalid_argument, "the step of a slice is 0");
    const Index length = as_index(dimension);
    const bool forward = slice.step > 0;
    const Index low = forward ? 0 : -1;
    const Index high = forward ? length : length - 1;
    const Index first = slice.start ? clip(*slice.start, length, low, high) : (forward ? low : high);
    const Index last = slice.stop ? clip(*slice.stop, length, low, high) : (forward ? high : low);
    const Index distance = forward ? last - first : first - last;
    if (distance <= 0) return {0, 1, 0};
    // Unsigned, because the smallest negative step has no positive counterpart.
    const auto magnitude =
        forward ? static_cast<std::uint64_t>(slice.step) : ~static_cast<std::uint64_t>(slice.step) + 1;
    const std::uint64_t count = (static_cast<std::uint64_t>(distance) - 1) / magnitude + 1;
    return {first, count == 1 ? 1 : slice.step, count};
}

// Returns offset + steps · stride. This fits in 64 bits if there are elements; without elements it does not matter and
// may wrap.
Index moved(Index offset, Index steps, Index stride) {
    return static_cast<Index>(static_cast<std::uint64_t>(offset) +
                              static_cast<std::uint64_t>(steps) * static_cast<std::uint64_t>(stride));
}

// Returns how many dimensions the slices name, not counting an ellipsis.
std::size_t named_dimensions(std::span<const Slice> slices, std::size_t rank) {
    std::size_t named = 0;
    std::size_t ellipses = 0;
    for (const Slice& s : slices) (s.kind == Slice::Kind::ellipsis ? ellipses : named) += 1;
    if (ellipses > 1) throw Error(Errc::too_many_indices, "more than one ellipsis");
    if (named > rank)
        throw Error(Errc::too_many_indices,
                    std::to_string(named) + " indices for " + std::to_string(rank) + " dimensions");
    return named;
}

}  // namespace

std::optional<std::uint64_t> element_count(const Shape& shape) noexcept {
    std::uint64_t count = 1;
    for (const std::uint64_t dimension : shape) {
        const auto product = checked_mul(count, dimension);
        if (!product) return std::nullopt;
        count = *product;
    }
    return count;
}

Strides row_major(const Shape& shape) {
    Strides strides(shape.size(), 1);
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
        strides[d] = stride;
        // A shape without elements may have other dimensions whose product overflows; its strides do not matter.
        const auto steps = static_cast<std::int64_t>(std::max<std::uint64_t>(shape[d], 1));
        if (__builtin_mul_overflow(stride, steps, &stride)) stride = 0;
    }
    return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) noexcept {
    if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) return true;
    std::int64_t expected = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
        if (shape[d] == 1) continue;
        if (strides[d] != expected) return false;
        expected *= static_cast<std::int64_t>(shape[d]);
    }
    return true;
}

StridedView slice(const StridedView& view, std::span<const Slice> slices) {
    const std::size_t rank = view.shape.size();
    const std::size_t named = named_dimensions(slices, rank);

    StridedView out;
    out.offset = view.offset;
    std::size_t axis = 0;
    const auto keep = [&](std::size_t count) {
        for (; count > 0; --count, ++axis) {
            out.shape.push_back(view.shape[axis]);
            out.strides.push_back(view.strides[axis]);
        }
    };
    for (const Slice& s : slices) {
        switch (s.kind) {
            case Slice::Kind::ellipsis: keep(rank - named); break;
            case Slice::Kind::index:
                out.offset =
                    moved(out.offset, index_in_dimension(*s.start, view.shape[axis], axis), view.strides[axis]);
                ++axis;
                break;
            case Slice::Kind::range: {
                const Range range = resolve(s, view.shape[axis]);
                out.offset = moved(out.offset, range.first, view.strides[axis]);
                out.shape.push_back(range.count);
                out.strides.push_back(moved(0, range.step, view.strides[axis]));
                ++axis;
                break;
            }
        }
    }
    keep(rank - axis);
    return out;
}

std::string to_string(const Shape& shape) {
    std::string text = "[";
    for (std::size_t d = 0; d < shape.size(); ++d) {
        if (d > 0) text += ", ";
        text += std::to_string(shape[d]);
    }
    return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }

}  // namespace safemap::SAFEMAP_ABI
