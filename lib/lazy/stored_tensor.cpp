// Checks that pieces hold every element exactly once, and locates elements in them.
#include "lazy/stored_tensor.hpp"

#include "base/checked.hpp"
#include "tensor/reach.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace safemap::SAFEMAP_ABI {
namespace {

std::string elements_text(std::uint64_t first, std::uint64_t end) {
    return "elements " + std::to_string(first) + " to " + std::to_string(end - 1);
}

/// Builds the source table for pieces that come with their sources.
class TableMaker {
public:
    std::uint32_t number_of(const std::shared_ptr<const Source>& source) {
        const auto [known, is_new] = numbers_.try_emplace(source.get(), static_cast<std::uint32_t>(sources_.size()));
        if (is_new) sources_.push_back(source);
        return known->second;
    }
    std::shared_ptr<const SourceTable> table() { return std::make_shared<const SourceTable>(std::move(sources_)); }

private:
    std::vector<std::shared_ptr<const Source>> sources_;
    std::unordered_map<const Source*, std::uint32_t> numbers_;
};

// Returns the number of runs of the flattened shape that a box of this extent consists of.
std::uint64_t rows_of(const Shape& shape, const Shape& extent) {
    std::uint64_t rows = 1;
    bool whole = true;  // true while all later dimensions are covered
    for (std::size_t d = shape.size(); d-- > 0;) {
        if (!whole) rows *= extent[d];
        whole = whole && extent[d] == shape[d];
    }
    return rows;
}

// Returns `count` elements from `first` on as bytes of the base. Throws partial_byte if they are not whole bytes.
Extent base_bytes(Dtype dtype, std::uint64_t first, std::uint64_t count) {
    const auto offset = byte_size(dtype, first);
    const auto size = byte_size(dtype, count);
    if (!offset || !size)
        throw Error(Errc::partial_byte, std::to_string(count) + " elements of " + std::string(name(dtype)) +
                                            " from element " + std::to_string(first) + " are not whole bytes");
    return {*offset, *size};
}

}  // namespace

void StoredTensor::count_elements() {
    const auto count = safemap::element_count(shape());
    if (!count || !checked_mul(*count, bits(dtype_)) || *count > static_cast<std::uint64_t>(INT64_MAX))
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(shape()) + " of " +
                                              std::string(name(dtype_)) + " does not fit in 64 bits");
    if (!byte_size(dtype_, *count))
        throw Error(Errc::partial_byte,
                    "shape " + to_string(shape()) + " of " + std::string(name(dtype_)) + " does not fill whole bytes");
    elements_ = *count;
}

void StoredTensor::check_bytes(const Source& source, std::uint64_t offset, std::uint64_t size) const {
    if (Extent{offset, size}.inside(source.size())) return;
    throw Error(Errc::storage_too_short, std::to_string(size) + " bytes at offset " + std::to_string(offset) +
                                             ", but the source has " + std::to_string(source.size()))
        .with_path(source.name());
}

StoredTensor::StoredTensor(Dtype dtype, std::shared_ptr<const Shape> shape, std::shared_ptr<const Source> source,
                           std::uint64_t offset)
    : dtype_(dtype), shape_(std::move(shape)), only_source_(std::move(source)), only_offset_(offset) {
    count_elements();
    if (elements_ > 0) check_bytes(*only_source_, offset, *byte_size(dtype, elements_));
}

StoredTensor::StoredTensor(Dtype dtype, Shape shape, std::shared_ptr<const SourceTable> table,
                           std::span<const IndexedRun> runs)
    : dtype_(dtype), shape_(std::make_shared<const Shape>(std::move(shape))), pieces_(std::make_unique<Pieces>()) {
    count_elements();
    pieces_->table = std::move(table);
    const auto before = [](const IndexedRun& a, const IndexedRun& b) { return a.first < b.first; };
    std::vector<IndexedRun> sorted;
    for (const IndexedRun& run : runs) check_run(run);
    if (!std::is_sorted(runs.begin(), runs.end(), before)) {
        sorted.assign(runs.begin(), runs.end());
        std::sort(sorted.begin(), sorted.end(), before);
        runs = sorted;
    }
    keep_runs(runs);
}

void StoredTensor::check_run(const IndexedRun& run) const {
    if (run.count == 0) return;
    if (!Extent{run.first, run.count}.inside(elements_))
        throw Error(Errc::bad_tensor, "a piece of " + std::to_string(run.count) + " elements from element " +
                                          std::to_string(run.first) + " is outside a tensor of " +
                                          std::to_string(elements_));
    check_bytes(source(run.source), run.offset, base_bytes(dtype_, run.first, run.count).size);
}

// Keeps sorted runs. Throws bad_tensor unless each begins where the one before it ends.
void StoredTensor::keep_runs(std::span<const IndexedRun> runs) {
    std::uint64_t covered = 0;
    const auto require = [&](std::uint64_t next) {
        if (next > covered) throw Error(Errc::bad_tensor, elements_text(covered, next) + " are in no piece");
        if (next < covered) throw Error(Errc::bad_tensor, elements_text(next, covered) + " are in two pieces");
    };
    pieces_->runs.reserve(runs.size());
    for (const IndexedRun& run : runs) {
        if (run.count == 0) continue;
        const Extent base = base_bytes(dtype_, run.first, run.count);
        require(base.offset / unit_size());
        covered = base.end() / unit_size();
        pieces_->runs.push_back({run.offset, base.offset / unit_size(), run.source});
    }
    require(units());
}

StoredTensor::StoredTensor(Dtype dtype, Shape shape, std::shared_ptr<const SourceTable> table,
                           std::span<const IndexedBox> boxes)
    : dtype_(dtype), shape_(std::make_shared<const Shape>(std::move(shape))), pieces_(std::make_unique<Pieces>()) {
    count_elements();
    Pieces& kept = *pieces_;
    kept.table = std::move(table);
    kept.rank = shape_->size();
    if (!whole_bytes(dtype))
        throw Error(Errc::bad_tensor, "boxes cannot have the sub-byte dtype " + std::string(name(dtype)));

    std::vector<const IndexedBox*> sorted;
    std::uint64_t covered = 0;
    for (const IndexedBox& box : boxes) {
        check_box(box);
        const std::uint64_t count = *safemap::element_count(box.place.extent);
        if (count == 0) continue;
        covered = checked_add(covered, count).value_or(UINT64_MAX);
        sorted.push_back(&box);
    }
    const auto before = [](const IndexedBox* a, const IndexedBox* b) {
        return std::lexicographical_compare(a->place.start.begin(), a->place.start.end(), b->place.start.begin(),
                                            b->place.start.end());
    };
    if (!std::is_sorted(sorted.begin(), sorted.end(), before)) std::sort(sorted.begin(), sorted.end(), before);
    std::vector<std::uint64_t> places;
    places.reserve(sorted.size() * 2 * kept.rank);
    kept.boxes.reserve(sorted.size());
    kept.strides.reserve(sorted.size() * kept.rank);
    for (const IndexedBox* box : sorted) {
        kept.boxes.push_back({box->offset, box->source});
        places.insert(places.end(), box->place.start.begin(), box->place.start.end());
        places.insert(places.end(), box->place.extent.begin(), box->place.extent.end());
        kept.rows += rows_of(*shape_, box->place.extent);
        kept.strides.insert(kept.strides.end(), box->strides.begin(), box->strides.end());
    }
    kept.grid = Grid(*shape_, kept.boxes.size(), std::move(places));
    if (const auto shared = kept.grid.first_shared())
        throw Error(Errc::bad_tensor, "element " + to_string(*shared) + " is in two pieces");
    if (covered != elements_)
        throw Error(Errc::bad_tensor, "pieces hold " + std::to_string(covered) + " elements, but shape " +
                                          to_string(*shape_) + " has " + std::to_string(elements_));
}

bool is_inside(const Box& box, const Shape& shape) noexcept {
    bool inside = box.start.size() == shape.size() && box.extent.size() == shape.size();
    for (std::size_t d = 0; inside && d < shape.size(); ++d)
        inside = Extent{box.start[d], box.extent[d]}.inside(shape[d]);
    return inside;
}

void StoredTensor::check_box(const IndexedBox& box) const {
    const std::size_t rank = shape().size();
    if (box.place.start.size() != rank || box.place.extent.size() != rank || box.strides.size() != rank)
        throw Error(Errc::bad_tensor, "a box does not have the " + std::to_string(rank) + " dimensions of its tensor");
    if (!is_inside(box.place, shape()))
        throw Error(Errc::bad_tensor, "a box at " + to_string(box.place.start) + " of " + to_string(box.place.extent) +
                                          " is outside shape " + to_string(shape()));
    if (*safemap::element_count(box.place.extent) == 0) return;

    const Source& file = source(box.source);
    const auto reach = reach_of({box.place.extent, box.strides, 0});
    const auto below = reach ? checked_mul(~static_cast<std::uint64_t>(reach->first) + 1, unit_size()) : std::nullopt;
    const auto above = reach ? checked_mul(static_cast<std::uint64_t>(reach->last) + 1, unit_size()) : std::nullopt;
    if (!below || !above || *below > box.offset || !Extent{box.offset, *above}.inside(file.size()))
        throw Error(Errc::storage_too_short, "a box of " + to_string(box.place.extent) + " at offset " +
                                                 std::to_string(box.offset) + " reaches outside the source of " +
                                                 std::to_string(file.size()) + " bytes")
            .with_path(file.name());
}

std::size_t StoredTensor::piece_count() const noexcept {
    if (!pieces_) return elements_ == 0 ? 0 : 1;
    return pieces_->runs.size() + pieces_->boxes.size();
}

StoredTensor::Place StoredTensor::locate(std::uint64_t unit) const noexcept {
    if (!pieces_) return {0, only_offset_ + unit * unit_size(), units() - unit, 1};
    const std::vector<Run>& runs = pieces_->runs;
    if (runs.empty()) return locate_in_boxes(unit);
    const auto after =
        std::upper_bound(runs.begin(), runs.end(), unit, [](std::uint64_t u, const Run& run) { return u < run.first; });
    const Run& run = *(after - 1);
    const std::uint64_t end = after == runs.end() ? units() : after->first;
    return {run.source, run.offset + (unit - run.first) * unit_size(), end - unit, 1};
}

StoredTensor::Place StoredTensor::locate_in_boxes(std::uint64_t element) const noexcept {
    const std::size_t rank = shape().size();
    if (rank == 0) return {pieces_->boxes[0].source, pieces_->boxes[0].offset, 1, 1};

    Shape at(rank, 0);
    for (std::size_t d = rank; d-- > 0;) {
        at[d] = element % shape()[d];
        element /= shape()[d];
    }
    Piece piece = {};  // always found: the boxes hold every element
    each_piece_in({at, Shape(rank, 1)}, [&](const Piece& found) { piece = found; });
    const auto& [source, offset, start, extent, strides] = piece;

    std::int64_t units = 0;
    for (std::size_t d = 0; d < rank; ++d) units += static_cast<std::int64_t>(at[d] - start[d]) * strides[d];

    // Count the rest of this row, and later rows while they are contiguous in both the base and the source.
    std::size_t d = rank - 1;
    std::uint64_t count = extent[d] - (at[d] - start[d]);
    std::uint64_t row = extent[d];
    while (d > 0 && extent[d] == shape()[d] && strides[d - 1] == strides[d] * static_cast<std::int64_t>(extent[d])) {
        --d;
        count += (extent[d] - 1 - (at[d] - start[d])) * row;
        row *= extent[d];
    }
    const auto bytes = static_cast<std::uint64_t>(units * static_cast<std::int64_t>(unit_size()));
    return {source, offset + bytes, count, strides[rank - 1]};
}

namespace {

template <class Piece> void require_sources(std::span<const Piece> pieces) {
    if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.source == nullptr; }))
        throw Error(Errc::invalid_argument, "the source of a piece is null");
}

template <class Piece> void require_numbers(const SourceTable* table, std::span<const Piece> pieces) {
    if (table == nullptr) throw Error(Errc::invalid_argument, "the table of sources is null");
    for (const Piece& piece : pieces)
        if (piece.source >= table->size())
            throw Error(Errc::invalid_argument, "a piece has source number " + std::to_string(piece.source) +
                                                    ", but the table has " + std::to_string(table->size()));
}

}  // namespace

SourceTable::SourceTable(std::vector<std::shared_ptr<const Source>> sources) : sources_(std::move(sources)) {
    if (sources_.size() >= UINT32_MAX) throw Error(Errc::invalid_argument, "too many sources: 2^32 or more");
    for (const auto& source : sources_)
        if (!source) throw Error(Errc::invalid_argument, "a source in the table is null");
}

std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape, std::span<const RunPiece> runs) {
    require_sources(runs);
    TableMaker sources;
    std::vector<IndexedRun> indexed;
    indexed.reserve(runs.size());
    for (const RunPiece& run : runs)
        indexed.push_back({run.offset, run.first, run.count, sources.number_of(run.source)});
    return std::make_shared<const StoredTensor>(dtype, std::move(shape), sources.table(), indexed);
}

std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape, std::shared_ptr<const SourceTable> table,
                                                std::span<const IndexedRun> runs) {
    require_numbers(table.get(), runs);
    return std::make_shared<const StoredTensor>(dtype, std::move(shape), std::move(table), runs);
}

std::shared_ptr<const StoredTensor> stored_run(Dtype dtype, Shape shape, std::shared_ptr<const Source> source,
                                               std::uint64_t offset) {
    if (!source) throw Error(Errc::invalid_argument, "the source of a piece is null");
    return std::make_shared<const StoredTensor>(dtype, std::make_shared<const Shape>(std::move(shape)),
                                                std::move(source), offset);
}

std::shared_ptr<const StoredTensor> StoredRuns::add(Dtype dtype, const Shape& shape,
                                                    std::shared_ptr<const Source> source, std::uint64_t offset) {
    if (!source) throw Error(Errc::invalid_argument, "the source of a piece is null");
    if (source != last_source_) {
        // There may be as many sources as tensors.
        tensors_.reset();
        last_source_ = source;
        return std::make_shared<const StoredTensor>(dtype, shared(shape), std::move(source), offset);
    }
    if (!tensors_ || tensors_->size() == tensors_->capacity()) {
        tensors_ = std::make_shared<std::vector<StoredTensor>>();
        tensors_->reserve(at_once);  // never moves what was given out
    }
    return {tensors_, &tensors_->emplace_back(dtype, shared(shape), std::move(source), offset)};
}

const std::shared_ptr<const Shape>& StoredRuns::shared(const Shape& shape) {
    std::size_t hash = shape.size();
    for (const std::uint64_t dimension : shape) hash = hash * 31 + static_cast<std::size_t>(dimension);
    auto& known = shapes_[(hash ^ hash / shapes_.size()) % shapes_.size()];
    if (!known || *known != shape) known = std::make_shared<const Shape>(shape);
    return known;
}

std::shared_ptr<const StoredTensor> stored_boxes(Dtype dtype, Shape shape, std::span<const BoxPiece> boxes) {
    require_sources(boxes);
    TableMaker sources;
    std::vector<IndexedBox> indexed;
    indexed.reserve(boxes.size());
    for (const BoxPiece& box : boxes)
        indexed.push_back({box.offset, box.place, box.strides, sources.number_of(box.source)});
    return std::make_shared<const StoredTensor>(dtype, std::move(shape), sources.table(), indexed);
}

std::shared_ptr<const StoredTensor> stored_boxes(Dtype dtype, Shape shape, std::shared_ptr<const SourceTable> table,
                                                 std::span<const IndexedBox> boxes) {
    require_numbers(table.get(), boxes);
    return std::make_shared<const StoredTensor>(dtype, std::move(shape), std::move(table), boxes);
}

}  // namespace safemap::SAFEMAP_ABI
