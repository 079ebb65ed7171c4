// Checks that pieces hold every element once, and finds them again.
#include "lazy/stored_tensor.hpp"

#include "tensor/reach.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace safemap {
namespace {

std::string elements_text(std::uint64_t first, std::uint64_t end) {
    return "elements " + std::to_string(first) + " to " + std::to_string(end - 1);
}

// `count` elements from element `first` on as bytes from byte 0 of the base on. Both must be whole bytes.
Extent base_bytes(Dtype dtype, std::uint64_t first, std::uint64_t count) {
    const auto offset = byte_size(dtype, first);
    const auto size = byte_size(dtype, count);
    if (!offset || !size)
        throw Error(Errc::partial_byte, "a run of " + std::to_string(count) + " elements of " +
                                            std::string(name(dtype)) + " from element " + std::to_string(first) +
                                            " on, which are not whole bytes");
    return {*offset, *size};
}

}  // namespace

void StoredTensor::count_elements() {
    const auto count = safemap::element_count(shape_);
    if (!count || !checked_mul(*count, bits(dtype_)) || *count > static_cast<std::uint64_t>(INT64_MAX))
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(shape_) + " of " +
                                              std::string(name(dtype_)) + " does not fit in 64 bits");
    if (!byte_size(dtype_, *count))
        throw Error(Errc::partial_byte,
                    "shape " + to_string(shape_) + " of " + std::string(name(dtype_)) + " does not fill whole bytes");
    elements_ = *count;
}

std::uint32_t StoredTensor::add_source(const std::shared_ptr<const Source>& source) {
    // Pieces of one source mostly come one after the other.
    const auto found = std::find(sources_.rbegin(), sources_.rend(), source);
    if (found != sources_.rend()) return static_cast<std::uint32_t>(sources_.rend() - found - 1);
    sources_.push_back(source);
    return static_cast<std::uint32_t>(sources_.size() - 1);
}

StoredTensor::StoredTensor(Dtype dtype, Shape shape, std::span<const RunPiece> runs)
    : dtype_(dtype), shape_(std::move(shape)) {
    count_elements();
    runs_.reserve(runs.size());
    for (const RunPiece& run : runs) {
        if (run.count == 0) continue;
        if (!Extent{run.first, run.count}.inside(elements_))
            throw Error(Errc::bad_tensor, "a piece of " + std::to_string(run.count) + " elements from element " +
                                              std::to_string(run.first) + " on, of a tensor of " +
                                              std::to_string(elements_));
        const Extent base = base_bytes(dtype, run.first, run.count);
        if (!Extent{run.offset, base.size}.inside(run.source->size()))
            throw Error(Errc::storage_too_short, std::to_string(base.size) + " bytes at offset " +
                                                     std::to_string(run.offset) + ", but the source has " +
                                                     std::to_string(run.source->size()))
                .with_path(run.source->name());
        runs_.push_back({run.offset, base.offset / unit_size(), base.size / unit_size(), add_source(run.source)});
    }
    std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.first < b.first; });

    const std::uint64_t units = base_bytes(dtype, 0, elements_).size / unit_size();
    std::uint64_t covered = 0;
    const auto require = [&](std::uint64_t next) {
        if (next > covered) throw Error(Errc::bad_tensor, elements_text(covered, next) + " are in no piece");
        if (next < covered) throw Error(Errc::bad_tensor, elements_text(next, covered) + " are in two pieces");
    };
    for (const Run& run : runs_) {
        require(run.first);
        covered = run.first + run.count;
    }
    require(units);
}

StoredTensor::StoredTensor(Dtype dtype, Shape shape, std::span<const BoxPiece> boxes)
    : dtype_(dtype), shape_(std::move(shape)) {
    count_elements();
    if (!whole_bytes(dtype)) throw Error(Errc::bad_tensor, "boxes of the sub-byte dtype " + std::string(name(dtype)));

    std::vector<const BoxPiece*> sorted;
    std::uint64_t covered = 0;
    for (const BoxPiece& box : boxes) {
        check_box(box);
        const std::uint64_t count = *safemap::element_count(box.place.extent);
        if (count == 0) continue;
        covered = checked_add(covered, count).value_or(UINT64_MAX);
        sorted.push_back(&box);
    }
    std::sort(sorted.begin(), sorted.end(), [](const BoxPiece* a, const BoxPiece* b) {
        return std::lexicographical_compare(a->place.start.begin(), a->place.start.end(), b->place.start.begin(),
                                            b->place.start.end());
    });
    for (const BoxPiece* box : sorted) {
        boxes_.push_back({box->offset, add_source(box->source)});
        places_.insert(places_.end(), box->place.start.begin(), box->place.start.end());
        places_.insert(places_.end(), box->place.extent.begin(), box->place.extent.end());
        strides_.insert(strides_.end(), box->strides.begin(), box->strides.end());
    }
    check_boxes_disjoint();
    if (covered != elements_)
        throw Error(Errc::bad_tensor, "pieces hold " + std::to_string(covered) + " elements, shape " +
                                          to_string(shape_) + " has " + std::to_string(elements_));
}

void StoredTensor::check_box(const BoxPiece& box) const {
    const std::size_t rank = shape_.size();
    if (box.place.start.size() != rank || box.place.extent.size() != rank || box.strides.size() != rank)
        throw Error(Errc::bad_tensor, "a box that has not the " + std::to_string(rank) + " dimensions of its tensor");
    for (std::size_t d = 0; d < rank; ++d)
        if (!Extent{box.place.start[d], box.place.extent[d]}.inside(shape_[d]))
            throw Error(Errc::bad_tensor, "a box at " + to_string(box.place.start) + " of " +
                                              to_string(box.place.extent) + " in shape " + to_string(shape_));
    if (*safemap::element_count(box.place.extent) == 0) return;

    const auto reach = reach_of({box.place.extent, box.strides, 0});
    const auto below = reach ? checked_mul(~static_cast<std::uint64_t>(reach->first) + 1, unit_size()) : std::nullopt;
    const auto above = reach ? checked_mul(static_cast<std::uint64_t>(reach->last) + 1, unit_size()) : std::nullopt;
    if (!below || !above || *below > box.offset || !Extent{box.offset, *above}.inside(box.source->size()))
        throw Error(Errc::storage_too_short, "a box of " + to_string(box.place.extent) + " at offset " +
                                                 std::to_string(box.offset) + " reaches outside the source of " +
                                                 std::to_string(box.source->size()) + " bytes")
            .with_path(box.source->name());
}

void StoredTensor::check_boxes_disjoint() const {
    const std::size_t rank = shape_.size();
    for (std::size_t a = 0; a < boxes_.size(); ++a)
        for (std::size_t b = a + 1; b < boxes_.size(); ++b) {
            // Sorted by start: from here on none reaches back to a along the first dimension.
            if (rank > 0 && start_of(b)[0] >= start_of(a)[0] + extent_of(a)[0]) break;
            bool apart = false;
            for (std::size_t d = 0; d < rank && !apart; ++d)
                apart = start_of(a)[d] + extent_of(a)[d] <= start_of(b)[d] ||
                        start_of(b)[d] + extent_of(b)[d] <= start_of(a)[d];
            if (!apart)
                throw Error(Errc::bad_tensor,
                            "element " + to_string(Shape(std::span(start_of(b), rank))) + " is in two pieces");
        }
}

StoredTensor::Place StoredTensor::locate(std::uint64_t unit) const noexcept {
    if (runs_.empty()) return locate_in_boxes(unit);
    const auto after = std::upper_bound(runs_.begin(), runs_.end(), unit,
                                        [](std::uint64_t u, const Run& run) { return u < run.first; });
    const Run& run = *(after - 1);
    const std::uint64_t inside = unit - run.first;
    return {run.source, run.offset + inside * unit_size(), run.count - inside, 1};
}

std::size_t StoredTensor::box_at(const Shape& at) const noexcept {
    const std::size_t rank = shape_.size();
    for (std::size_t box = 0;; ++box) {
        bool inside = true;
        for (std::size_t d = 0; d < rank && inside; ++d)
            inside = at[d] >= start_of(box)[d] && at[d] - start_of(box)[d] < extent_of(box)[d];
        if (inside) return box;  // always found: boxes hold every element
    }
}

StoredTensor::Place StoredTensor::locate_in_boxes(std::uint64_t element) const noexcept {
    const std::size_t rank = shape_.size();
    if (rank == 0) return {boxes_[0].source, boxes_[0].offset, 1, 1};

    Shape at(rank, 0);
    for (std::size_t d = rank; d-- > 0;) {
        at[d] = element % shape_[d];
        element /= shape_[d];
    }
    const std::size_t box = box_at(at);
    const std::uint64_t* start = start_of(box);
    const std::uint64_t* extent = extent_of(box);
    const std::int64_t* strides = strides_of(box);

    std::int64_t units = 0;
    for (std::size_t d = 0; d < rank; ++d) units += static_cast<std::int64_t>(at[d] - start[d]) * strides[d];

    // The rest of the row, and of the rows after it as long as they follow in the base and in the source alike.
    std::size_t d = rank - 1;
    std::uint64_t count = extent[d] - (at[d] - start[d]);
    std::uint64_t row = extent[d];
    while (d > 0 && extent[d] == shape_[d] && strides[d - 1] == strides[d] * static_cast<std::int64_t>(extent[d])) {
        --d;
        count += (extent[d] - 1 - (at[d] - start[d])) * row;
        row *= extent[d];
    }
    const auto bytes = static_cast<std::uint64_t>(units * static_cast<std::int64_t>(unit_size()));
    return {boxes_[box].source, boxes_[box].offset + bytes, count, strides[rank - 1]};
}

std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape, std::span<const RunPiece> runs) {
    return std::make_shared<const StoredTensor>(dtype, std::move(shape), runs);
}

std::shared_ptr<const StoredTensor> stored_run(Dtype dtype, Shape shape, std::shared_ptr<const Source> source,
                                               std::uint64_t offset) {
    const std::uint64_t count = safemap::element_count(shape).value_or(0);
    const RunPiece run{std::move(source), offset, 0, count};
    return stored_runs(dtype, std::move(shape), {&run, 1});
}

std::shared_ptr<const StoredTensor> stored_boxes(Dtype dtype, Shape shape, std::span<const BoxPiece> boxes) {
    return std::make_shared<const StoredTensor>(dtype, std::move(shape), boxes);
}

}  // namespace safemap
