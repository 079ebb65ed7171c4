// Maps the dimensions of a view to those of its base, and cuts them at the bounds of boxes.
#include "lazy/regions.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include <algorithm>
#include <cstdlib>

namespace safemap::SAFEMAP_ABI {

void join(std::vector<Axis>& axes) {
    for (std::size_t i = axes.size(); i-- > 1;) {
        Axis& outer = axes[i - 1];
        const Axis& inner = axes[i];
        const auto extent = static_cast<std::int64_t>(inner.extent);
        if (outer.in != inner.in * extent || outer.out != inner.out * extent) continue;
        outer = {outer.extent * inner.extent, inner.in, inner.out};
        axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
    }
}

void nearest_last(std::vector<Axis>& axes, std::int64_t& in, std::int64_t& out) {
    for (Axis& axis : axes) {
        if (axis.in >= 0) continue;
        const auto steps = static_cast<std::int64_t>(axis.extent) - 1;
        in += steps * axis.in;
        out += steps * axis.out;
        axis.in = -axis.in;
        axis.out = -axis.out;
    }
    std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.in > b.in; });
    join(axes);
}

std::optional<BaseRegion> BaseRegion::of(const StoredTensor& stored, const StridedView& view, const Box& box) {
    const Shape& base = stored.shape();
    BaseRegion region;
    region.unit_ = stored.unit_size();
    region.dimensions_.resize(base.size());
    std::int64_t first = view.offset;
    for (std::size_t d = 0; d < view.shape.size(); ++d)
        first += static_cast<std::int64_t>(box.start[d]) * view.strides[d];
    auto rest = static_cast<std::uint64_t>(first);
    for (std::size_t d = base.size(); d-- > 0;) {
        region.dimensions_[d].low = rest % base[d];
        rest /= base[d];
    }
    std::int64_t out = region.unit_;
    for (std::size_t d = view.shape.size(); d-- > 0;) {
        if (!region.add(base, box.extent[d], view.strides[d], out)) return std::nullopt;
        out *= static_cast<std::int64_t>(box.extent[d]);
    }
    return region;
}

// Adds a dimension of the region. Returns false if its stride fits no dimension of the base, or if it runs into the
// next row.
bool BaseRegion::add(const Shape& base, std::uint64_t extent, std::int64_t stride, std::int64_t out) {
    if (extent == 1) return true;
    if (stride == 0) {
        repeats_.push_back({extent, 0, out});
        return true;
    }
    const auto distance = static_cast<std::uint64_t>(std::abs(stride));
    std::uint64_t row = 1;  // elements from one index of dimension d to the next
    std::size_t d = base.size();
    while (d-- > 0 && distance >= row * base[d]) row *= base[d];
    if (d >= base.size() || distance % row != 0) return false;
    Dimension& dimension = dimensions_[d];
    const std::uint64_t step = distance / row;
    const std::uint64_t length = (extent - 1) * step;
    if (dimension.count > 1 || length > (stride < 0 ? dimension.low : base[d] - 1 - dimension.low)) return false;
    if (stride < 0) {
        dimension.low -= length;
        out_ += static_cast<std::int64_t>(extent - 1) * out;
    }
    dimension = {dimension.low, step, extent, stride < 0 ? -out : out};
    return true;
}

Box BaseRegion::hull() const {
    Box box;
    for (const Dimension& dimension : dimensions_) {
        box.start.push_back(dimension.low);
        box.extent.push_back((dimension.count - 1) * dimension.step + 1);
    }
    return box;
}

std::optional<BoxPart> BaseRegion::part_in(const StoredTensor::Piece& piece) const {
    BoxPart part{piece.source, static_cast<std::int64_t>(piece.offset), out_, repeats_};
    for (std::size_t d = 0; d < dimensions_.size(); ++d) {
        const auto& [low, step, count, out] = dimensions_[d];
        // Returns the number of the first element at or after index `at` of the base.
        const auto number_at = [low = low, step = step](std::uint64_t at) {
            return at <= low ? 0 : (at - low - 1) / step + 1;
        };
        const std::uint64_t first = number_at(piece.start[d]);
        const std::uint64_t end = std::min(count, number_at(piece.start[d] + piece.extent[d]));
        if (first >= end) return std::nullopt;
        const std::int64_t distance = piece.strides[d] * unit_;
        part.in += static_cast<std::int64_t>(low + first * step - piece.start[d]) * distance;
        part.out += static_cast<std::int64_t>(first) * out;
        if (end - first > 1) part.axes.push_back({end - first, static_cast<std::int64_t>(step) * distance, out});
    }
    return part;
}

}  // namespace safemap::SAFEMAP_ABI
