// Cuts tensors into ranges and boxes for bulk work.
#include "lazy/blocks.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>

#include "base/checked.hpp"
#include "lazy/stored_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace safemap::SAFEMAP_ABI {
namespace {

// Ranges are multiples of this: a multiple of every element size, and of the three bytes that hold four F6 elements.
constexpr std::uint64_t range_grain = 48;

// Minimum bytes that are contiguous in the source if a transposed tensor is written in rows. Below this, tiles are
// used: they are read faster, but written in pieces of a few KiB through the page cache.
constexpr std::uint64_t least_stretch = 256;

// Boxes with rows shorter than this are gathered into rows of the value. Longer rows are read straight into the output.
constexpr std::uint64_t least_box_row = 16U << 10;

// Size of the blocks of a tensor in boxes, small enough to stay in the cache. Blocks are larger if they would otherwise
// read less than `box_read` bytes of a box at a time.
constexpr std::uint64_t row_block = 1U << 20;
constexpr std::uint64_t box_read = 16U << 10;

// Two dimensions of a view: the last one with more than one element, and the one with the smallest stride in the
// source.
struct Inner {
    std::size_t value = 0;
    std::size_t source = 0;
};

Inner inner_dimensions(const StridedView& view) {
    Inner inner;
    std::uint64_t nearest = UINT64_MAX;
    for (std::size_t d = 0; d < view.shape.size(); ++d) {
        if (view.shape[d] <= 1) continue;
        inner.value = d;
        const auto distance = static_cast<std::uint64_t>(std::abs(view.strides[d]));
        // If strides are equal, take the later dimension: then a contiguous tensor has the same for both. Stride 0 (a
        // repeated element) does not count: such a dimension is fast in any order.
        if (distance != 0 && distance <= nearest) {
            nearest = distance;
            inner.source = d;
        }
    }
    if (nearest == UINT64_MAX) inner.source = inner.value;
    return inner;
}

bool stands_transposed(const LazyTensor& tensor, const Inner& inner) {
    return whole_bytes(tensor.dtype()) && inner.value != inner.source &&
           tensor.strided_view().strides[inner.value] != 0;
}

// A range of whole rows of a transposed tensor, or of whole planes and more.
struct Rows {
    std::uint64_t bytes = 0;    // as large as allowed; 0 if a row is too long
    std::uint64_t stretch = 0;  // bytes that are contiguous in the source too
};

Rows rows_of(const LazyTensor& tensor, std::uint64_t max_bytes) {
    const Inner inner = inner_dimensions(tensor.strided_view());
    if (tensor.nbytes() == 0 || !stands_transposed(tensor, inner)) return {};
    const Shape& shape = tensor.shape();
    const std::uint64_t element = element_size(tensor.dtype());
    std::uint64_t one = element;  // bytes of one index along dimension d
    std::size_t d = shape.size() - 1;
    for (; d > 0 && one * shape[d] <= max_bytes; --d) one *= shape[d];
    if (d == inner.value) return {};
    const std::uint64_t most = std::min(shape[d], max_bytes / one);
    return {most * one, element * (inner.source > d ? shape[inner.source] : inner.source == d ? most : 1)};
}

}  // namespace

Blocks::Blocks(std::uint64_t total_bytes, std::uint64_t max_bytes) noexcept
    : range_bytes_(std::max(max_bytes / range_grain, std::uint64_t{1}) * range_grain), total_bytes_(total_bytes) {
    count_ = total_bytes_ == 0 ? 0 : (total_bytes_ - 1) / range_bytes_ + 1;
}

Blocks Blocks::of_ranges(const LazyTensor& tensor, std::uint64_t max_bytes, std::uint64_t range_bytes) {
    Blocks blocks(tensor.nbytes(), max_bytes);
    if (range_bytes == 0 || tensor.nbytes() == 0) return blocks;
    blocks.range_bytes_ = range_bytes;
    blocks.count_ = (tensor.nbytes() - 1) / range_bytes + 1;
    return blocks;
}

// Cuts into ranges of whole rows of the value, or of planes and more.
Blocks Blocks::of_rows(const LazyTensor& tensor, std::uint64_t max_bytes) {
    if (tensor.nbytes() == 0) return of_ranges(tensor, max_bytes, 0);
    const Shape& shape = tensor.shape();
    std::uint64_t row = element_size(tensor.dtype());
    for (std::size_t d = shape.size(); d-- > 1 && row * shape[d] <= max_bytes;) row *= shape[d];
    if (row == element_size(tensor.dtype())) return of_ranges(tensor, max_bytes, 0);
    const StoredTensor& stored = *tensor.stored();
    const std::uint64_t rows = std::max(box_read / (stored.mean_row() * stored.unit_size()), row_block / row);
    return of_ranges(tensor, max_bytes, std::clamp(rows, std::uint64_t{1}, max_bytes / row) * row);
}

Blocks Blocks::in_order(const LazyTensor& tensor, std::uint64_t max_bytes) {
    return of_ranges(tensor, max_bytes, rows_of(tensor, max_bytes).bytes);
}

bool Blocks::wants_rows(const LazyTensor& tensor) {
    const StoredTensor& stored = *tensor.stored();
    return stored.in_boxes() && stored.mean_row() * stored.unit_size() < least_box_row &&
           !stands_transposed(tensor, inner_dimensions(tensor.strided_view()));
}

std::uint64_t Blocks::rows_at_once(const LazyTensor& tensor) {
    const StoredTensor& stored = *tensor.stored();
    const std::uint64_t row = tensor.shape().empty() ? 1 : tensor.shape()[tensor.shape().size() - 1];
    const std::uint64_t rows = box_read / (stored.mean_row() * stored.unit_size()) + 1;
    return checked_mul(row * stored.unit_size(), rows).value_or(UINT64_MAX);
}

Blocks Blocks::for_disk(const LazyTensor& tensor, std::uint64_t max_bytes) {
    if (wants_rows(tensor)) return of_rows(tensor, max_bytes);
    return rows_of(tensor, max_bytes).stretch >= least_stretch ? in_order(tensor, max_bytes)
                                                               : Blocks(tensor, max_bytes);
}

Blocks::Blocks(const LazyTensor& tensor, std::uint64_t max_bytes) : Blocks(tensor.nbytes(), max_bytes) {
    if (count_ <= 1) return;
    const Inner inner = inner_dimensions(tensor.strided_view());
    if (!stands_transposed(tensor, inner)) return;

    ranges_ = false;
    shape_ = tensor.shape();
    element_bits_ = bits(tensor.dtype());
    const std::uint64_t budget = std::max<std::uint64_t>(max_bytes / element_size(tensor.dtype()), 1);
    const auto side = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(budget)));
    step_ = Shape(shape_.size(), 1);
    step_[inner.value] = std::min(shape_[inner.value], std::max<std::uint64_t>(side, 1));
    step_[inner.source] = std::min(shape_[inner.source], budget / step_[inner.value]);
    std::uint64_t filled = step_[inner.value] * step_[inner.source];
    for (std::size_t d = shape_.size(); d-- > 0;) {
        filled /= step_[d];
        step_[d] = std::min(shape_[d], std::max(step_[d], budget / filled));
        filled *= step_[d];
    }
    grid_ = Shape(shape_.size(), 1);
    count_ = 1;
    for (std::size_t d = 0; d < shape_.size(); ++d) {
        grid_[d] = (shape_[d] - 1) / step_[d] + 1;
        count_ *= grid_[d];
    }
}

void Blocks::align(std::uint64_t offset, std::uint64_t alignment) noexcept {
    if (!ranges_ || count_ <= 1 || range_bytes_ < 2 * alignment) return;
    range_bytes_ -= range_bytes_ % alignment;
    before_ = offset % alignment;
    count_ = (before_ + total_bytes_ - 1) / range_bytes_ + 1;
}

Extent Blocks::range(std::uint64_t i) const noexcept {
    const std::uint64_t offset = i == 0 ? 0 : i * range_bytes_ - before_;
    return {offset, std::min((i + 1) * range_bytes_ - before_, total_bytes_) - offset};
}

Box Blocks::box(std::uint64_t i) const {
    Box box{Shape(shape_.size(), 0), Shape(shape_.size(), 0)};
    for (std::size_t d = shape_.size(); d-- > 0;) {
        box.start[d] = i % grid_[d] * step_[d];
        box.extent[d] = std::min(step_[d], shape_[d] - box.start[d]);
        i /= grid_[d];
    }
    return box;
}

std::uint64_t Blocks::size(std::uint64_t i) const {
    return ranges_ ? range(i).size : *safemap::element_count(box(i).extent) * element_bits_ / 8;
}

std::span<std::byte> Blocks::gather(std::uint64_t i, const LazyTensor& tensor, Gatherer& gatherer,
                                    std::span<std::byte> buffer, const GatherRoom& room) const {
    const auto bytes = buffer.first(static_cast<std::size_t>(size(i)));
    if (ranges_) {
        gatherer.begin(room);
        gatherer.add(tensor, tensor.dtype(), range(i).offset, bytes);
        gatherer.flush();
    } else {
        gatherer.fill(tensor, box(i), bytes, room);
    }
    return bytes;
}

}  // namespace safemap::SAFEMAP_ABI
