// Finds the ranges of files that values are read from, and queries, prefetches or evicts them.
#include "lazy/page_cache.hpp"

#include "base/faults.hpp"
#include "base/pool.hpp"
#include "base/watch.hpp"
#include "lazy/regions.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <span>
#include <unordered_set>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

using namespace literals;

// The kernel caches whole pages of at least this size. Ranges closer than this are cached together, whatever the page
// size of the machine.
constexpr std::uint64_t page = 4_KiB;
// Bytes that one thread requests at a time. Threads take steps in turn and so read close behind each other: the disk
// sees one stream. Steps of 8 MiB, the kernel's read-ahead where this was measured, took twice as long.
constexpr std::uint64_t step_bytes = 1_MiB;

void add(std::vector<SourceRange>& ranges, const SourceRange& next) {
    if (!ranges.empty() && ranges.back().source == next.source) {
        Extent& last = ranges.back().extent;
        if (next.extent.offset >= last.offset && next.extent.offset <= last.end() + page) {
            last.size = std::max(last.end(), next.extent.end()) - last.offset;
            return;
        }
    }
    ranges.push_back(next);
}

/// Walks a view of a tensor in the order of the source, row by row.
class Walk {
public:
    Walk(const LazyTensor& tensor, std::vector<SourceRange>& ranges) : stored_(*tensor.stored()), ranges_(ranges) {
        if (tensor.element_count() == 0) return;
        const StridedView view = tensor.strided_view();
        if (stored_.in_boxes())
            if (const auto region = BaseRegion::of(stored_, view, {Shape(view.shape.size(), 0), view.shape})) {
                region->each_part(stored_, [&](BoxPart&& part) { emit_part(std::move(part)); });
                return;
            }
        find_axes(view);
        emit(0, first_);
    }

private:
    struct Step {
        std::uint64_t extent;
        std::uint64_t stride;  // elements
    };

    // Finds the axes with a nonzero stride, turned to run upwards, the largest stride first. Joins contiguous axes.
    void find_axes(const StridedView& view) {
        auto first = view.offset;
        for (std::size_t d = 0; d < view.shape.size(); ++d) {
            const std::int64_t stride = view.strides[d];
            if (view.shape[d] == 1 || stride == 0) continue;
            if (stride < 0) first += static_cast<std::int64_t>(view.shape[d] - 1) * stride;
            axes_.push_back({view.shape[d], static_cast<std::uint64_t>(std::abs(stride))});
        }
        first_ = static_cast<std::uint64_t>(first);
        std::stable_sort(axes_.begin(), axes_.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
        for (std::size_t i = axes_.size(); i-- > 1;) {
            if (axes_[i - 1].stride != axes_[i].stride * axes_[i].extent) continue;
            axes_[i - 1] = {axes_[i - 1].extent * axes_[i].extent, axes_[i].stride};
            axes_.erase(axes_.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }

    void emit(std::size_t axis, std::uint64_t element) {
        if (axis == axes_.size()) return emit_elements(element, element);
        const auto [extent, stride] = axes_[axis];
        if (axis + 1 == axes_.size() && unit_at(stride) * stored_.unit_size() <= page)
            return emit_elements(element, element + (extent - 1) * stride);
        for (std::uint64_t i = 0; i < extent; ++i) emit(axis + 1, element + i * stride);
    }

    void emit_elements(std::uint64_t first, std::uint64_t last) {
        const std::uint64_t last_unit =
            whole_bytes(stored_.dtype()) ? last : ((last + 1) * bits(stored_.dtype()) - 1) / 8;
        for (std::uint64_t unit = unit_at(first); unit <= last_unit;) {
            StoredTensor::Place place = stored_.locate(unit);
            place.count = std::min(place.count, last_unit - unit + 1);
            unit += place.count;
            emit_place(place);
        }
    }

    // Adds the ranges that one box holds of the view. There is no output, so axes are joined wherever the source is
    // contiguous.
    void emit_part(BoxPart&& part) {
        for (Axis& axis : part.axes) axis.out = axis.in;
        std::erase_if(part.axes, [](const Axis& axis) { return axis.in == 0; });
        nearest_last(part.axes, part.in, part.out);
        emit_steps(stored_.source(part.source), part.axes, static_cast<std::uint64_t>(part.in));
    }

    void emit_steps(const Source& source, std::span<const Axis> axes, std::uint64_t offset) {
        if (axes.empty()) return add(ranges_, {&source, {offset, stored_.unit_size()}});
        const auto distance = static_cast<std::uint64_t>(axes.front().in);
        if (axes.size() == 1 && distance <= page)
            return add(ranges_, {&source, {offset, (axes.front().extent - 1) * distance + stored_.unit_size()}});
        for (std::uint64_t i = 0; i < axes.front().extent; ++i)
            emit_steps(source, axes.subspan(1), offset + i * distance);
    }

    void emit_place(const StoredTensor::Place& place) {
        const Source* const source = &stored_.source(place.source);
        const std::uint64_t unit = stored_.unit_size();
        const std::uint64_t step = static_cast<std::uint64_t>(std::abs(place.stride)) * unit;
        if (step <= page) {
            const std::uint64_t before = (place.count - 1) * step;
            add(ranges_, {source, {place.stride < 0 ? place.offset - before : place.offset, before + unit}});
            return;
        }
        for (std::uint64_t i = 0; i < place.count; ++i)
            add(ranges_, {source, {place.stride < 0 ? place.offset - i * step : place.offset + i * step, unit}});
    }

    std::uint64_t unit_at(std::uint64_t element) const noexcept {
        return whole_bytes(stored_.dtype()) ? element : element * bits(stored_.dtype()) / 8;
    }

    const StoredTensor& stored_;
    std::vector<SourceRange>& ranges_;
    std::vector<Step> axes_;
    std::uint64_t first_ = 0;
};

/// Cuts ranges into steps. Steps begin at multiples of step_bytes in the source.
std::vector<SourceRange> steps_of(std::span<const SourceRange> ranges) {
    std::vector<SourceRange> steps;
    for (const SourceRange& range : ranges)
        for (std::uint64_t at = range.extent.offset; at < range.extent.end();) {
            const std::uint64_t end = std::min(range.extent.end(), (at / step_bytes + 1) * step_bytes);
            steps.push_back({range.source, {at, end - at}});
            at = end;
        }
    return steps;
}

}  // namespace

std::vector<SourceRange> ranges_of(std::span<const LazyTensor> tensors) {
    std::vector<SourceRange> found;
    for (const LazyTensor& tensor : tensors) Walk(tensor, found);
    std::sort(found.begin(), found.end(), [](const SourceRange& a, const SourceRange& b) {
        return a.source != b.source ? std::less<>()(a.source, b.source) : a.extent.offset < b.extent.offset;
    });
    std::vector<SourceRange> ranges;
    for (const SourceRange& range : found) add(ranges, range);
    return ranges;
}

Residency residency(std::span<const LazyTensor> tensors) {
    Residency sum;
    for (const SourceRange& range : ranges_of(tensors)) sum += range.source->residency(range.extent);
    return sum;
}

void prefetch(std::span<const LazyTensor> tensors, const Work& work) {
    const std::vector<SourceRange> steps = steps_of(ranges_of(tensors));
    std::uint64_t total = 0;
    for (const SourceRange& step : steps) total += step.extent.size;
    Watch watch(work.monitor, "prefetching", total);
    watch.check_stop();
    parallel_for(
        steps.size(), work.threads,
        [&](std::size_t i, unsigned) {
            watch.check_stop();
            steps[i].source->prefetch(steps[i].extent);
            watch.add(steps[i].extent.size);
        },
        [&] { watch.tick(); });
    watch.tell();
}

void evict(std::span<const LazyTensor> tensors) {
    for (const SourceRange& range : ranges_of(tensors)) range.source->evict(range.extent);
}

namespace {

template <class Holders, class Of> void require_each_unchanged(Holders holders, Of&& tensor_of) {
    std::unordered_set<const Source*> asked;
    for (const auto& holder : holders) {
        const LazyTensor& tensor = tensor_of(holder);
        about_tensor(tensor.name(), [&] {
            tensor.stored()->each_source([&](const Source& source) {
                if (asked.insert(&source).second) source.require_unchanged();
            });
        });
    }
}

}  // namespace

void require_unchanged(std::span<const LazyTensor> tensors) { require_each_unchanged(tensors, std::identity()); }
void require_unchanged(std::span<const LoadTarget> targets) {
    require_each_unchanged(targets, [](const LoadTarget& target) -> const LazyTensor& { return target.tensor; });
}

}  // namespace safemap::SAFEMAP_ABI
