// Finds strips, and cuts them.
#include "lazy/strips.hpp"

#include "lazy/scattered_read.hpp"
#include "lazy/stored_tensor.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/strides.hpp>

namespace safemap::SAFEMAP_ABI {
namespace {

// Longer rows are read one by one in any case.
constexpr std::uint64_t short_row = ScatteredExtent::worthwhile_gap / 2;
// A unit has fewer strips than the Gatherer collects, so that neighbours are read together.
constexpr std::size_t most_at_once = 2000;
// Parts of strips are not shorter, because each is written by itself.
constexpr std::uint64_t least_part = 4096;
// Ranges are multiples of this: a multiple of every element size.
constexpr std::uint64_t grain = 16;
// Bytes of the storage from the first to the last element of a strip that are gathered at once. Those of its neighbours
// then fit into what the Gatherer reads at once, 1 MiB.
constexpr std::uint64_t read_at_once = (1U << 20) - 2 * ScatteredExtent::worthwhile_gap;
// If the elements of a strip are far apart, this many strips are read together, and this many elements of each.
constexpr std::size_t far_strips = 128;
constexpr std::uint64_t far_elements = 64;

// Returns the elements from the first to the last one of a view in its base. The view has elements.
std::uint64_t span_of(const StridedView& view) {
    const Reach reach = *reach_of(view);
    return static_cast<std::uint64_t>(reach.last - reach.first) + 1;
}

}  // namespace

bool alternates(const LazyTensor& first, const LazyTensor& next) {
    if (first.stored() != next.stored() || first.dtype() != next.dtype() || first.decoding() != next.decoding())
        return false;
    const StridedView a = first.strided_view();
    const StridedView b = next.strided_view();
    if (a.shape != b.shape || a.strides != b.strides || first.element_count() == 0) return false;
    const std::int64_t distance = a.offset < b.offset ? b.offset - a.offset : a.offset - b.offset;
    return static_cast<std::uint64_t>(distance) < span_of(a);
}

bool is_strip(const LazyTensor& tensor) {
    if (!tensor.stored()->in_one_run() || !whole_bytes(tensor.dtype()) || tensor.element_count() == 0) return false;
    const StridedView view = tensor.strided_view();
    std::uint64_t row = 1;       // elements that are contiguous in the storage, too
    std::uint64_t elements = 1;  // count in the dimensions so far
    std::int64_t inner = 0;
    for (std::size_t d = view.shape.size(); d-- > 0;) {
        if (view.shape[d] == 1) continue;
        if (view.strides[d] <= inner) return false;
        if (elements == row && static_cast<std::uint64_t>(view.strides[d]) == row) row *= view.shape[d];
        elements *= view.shape[d];
        inner = view.strides[d];
    }
    return row < elements && row * element_size(tensor.stored()->dtype()) < short_row;
}

Strips::Strips(const LazyTensor& one, Dtype dtype, std::size_t count, std::uint64_t buffer)
    : dtype_(dtype), count_(count), size_(*byte_size(dtype, one.element_count())) {
    const std::uint64_t element = element_size(dtype);
    const std::uint64_t distance = span_of(one.strided_view()) * element_size(one.stored()->dtype()) /
                                   one.element_count();  // bytes from one element to the next, on average
    const bool far = distance > ScatteredExtent::worthwhile_gap;
    const auto fits = static_cast<std::size_t>(std::max<std::uint64_t>(buffer / std::min(size_, least_part), 1));
    at_once_ = std::min({count, fits, far ? far_strips : most_at_once});
    part_ = std::min(size_, std::max<std::uint64_t>(buffer / at_once_ / grain, 1) * grain);
    parts_ = (size_ - 1) / part_ + 1;
    sets_ = (count - 1) / at_once_ + 1;
    const std::uint64_t elements = far ? far_elements : read_at_once / std::max<std::uint64_t>(distance, 1);
    step_ = static_cast<std::size_t>(std::max<std::uint64_t>(elements * element / grain, 1) * grain);
}

}  // namespace safemap::SAFEMAP_ABI
