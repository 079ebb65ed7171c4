// Checks that parts make up a tensor, and turns them into pieces: runs if every part is a row of the whole or flat,
// boxes otherwise.
#include "lazy/whole.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "lazy/grid.hpp"
#include "lazy/stored_tensor.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Returns the name of the first file that holds elements of `value`; empty if none does.
std::string file_of(const LazyTensor& value) {
    const std::string* found = nullptr;
    value.stored()->each_source([&](const Source& source) {
        if (found == nullptr) found = &source.name();
    });
    return found == nullptr ? std::string() : *found;
}

[[noreturn]] void fail(Errc code, std::string message, const LazyTensor& value) {
    throw Error(code, std::move(message)).with_path(file_of(value));
}

std::uint64_t elements_of(Dtype dtype, const Shape& shape) {
    const auto count = element_count(shape);
    if (!count || !byte_size(dtype, *count))
        throw Error(Errc::shape_overflow, "the size of shape " + to_string(shape) + " of " +
                                              std::string(safemap::name(dtype)) + " does not fit in 64 bits");
    return *count;
}

void check_dtype(const LazyTensor& value, Dtype dtype, Decoding decoding) {
    if (value.dtype() != dtype || value.stored()->dtype() != dtype)
        fail(Errc::piece_mismatch,
             "a part has the dtype " + std::string(safemap::name(value.dtype())) + "; expected " +
                 std::string(safemap::name(dtype)),
             value);
    if (!(value.decoding() == decoding))
        fail(Errc::piece_mismatch, "the bytes of a part are decoded in another way than those of the parts before it",
             value);
}

[[noreturn]] void refuse_packed(const LazyTensor& value, const std::string& why) {
    fail(Errc::piece_mismatch, "parts" + why + " cannot have the sub-byte dtype " + std::string(name(value.dtype())),
         value);
}

/// Calls visit(part) for all parts with elements, in the order of their first elements.
template <class Visit> void in_order(std::span<const FlatPart> parts, Visit&& visit) {
    const auto before = [](const FlatPart& a, const FlatPart& b) { return a.first < b.first; };
    if (std::is_sorted(parts.begin(), parts.end(), before)) {
        for (const FlatPart& part : parts)
            if (part.count > 0) visit(part);
        return;
    }
    std::vector<FlatPart> sorted(parts.begin(), parts.end());
    std::stable_sort(sorted.begin(), sorted.end(), before);
    for (const FlatPart& part : sorted)
        if (part.count > 0) visit(part);
}

/// Makes the runs of a tensor of flat parts.
class FlatWhole {
public:
    FlatWhole(Dtype dtype, std::uint64_t elements, const PartSources& sources)
        : dtype_(dtype), elements_(elements), sources_(sources) {}

    void add(const FlatPart& part) {
        if (!decoding_) decoding_ = part.value->decoding();
        check_dtype(*part.value, dtype_, *decoding_);
        if (!whole_bytes(dtype_)) refuse_packed(*part.value, "");
        check_place(part);
        covered_ = part.first + part.count;
        add_runs(part);
        last_value_ = part.value;
    }

    void require_all() const {
        if (covered_ == elements_) return;
        Error error(Errc::not_covered, "elements " + std::to_string(covered_) + " to " + std::to_string(elements_ - 1) +
                                           " of " + std::to_string(elements_) + " are in no part");
        if (last_value_ != nullptr) error.with_path(file_of(*last_value_));
        throw error;
    }

    Decoding decoding() const { return decoding_.value_or(Decoding()); }
    const std::vector<IndexedRun>& runs() const { return runs_; }

private:
    void check_place(const FlatPart& part) const {
        const LazyTensor& value = *part.value;
        if (!Extent{part.from, part.count}.inside(value.element_count()))
            fail(Errc::piece_mismatch,
                 "a part has " + counted(value.element_count(), "element") + "; expected " +
                     counted(part.count, "element") + " from element " + std::to_string(part.from),
                 value);
        if (!Extent{part.first, part.count}.inside(elements_))
            fail(Errc::piece_outside,
                 "a part of " + counted(part.count, "element") + " from element " + std::to_string(part.first) +
                     " reaches past the " + counted(elements_, "element") + " of the tensor",
                 value);
        if (part.first < covered_)
            fail(Errc::pieces_overlap, "element " + std::to_string(part.first) + " is in two parts, which overlap",
                 value);
        if (part.first > covered_)
            fail(Errc::not_covered,
                 "elements " + std::to_string(covered_) + " to " + std::to_string(part.first - 1) + " are in no part",
                 value);
    }

    void add_runs(const FlatPart& part) {
        const StoredTensor& stored = *part.value->stored();
        const StridedView view = part.value->strided_view();
        if (!is_contiguous(view.shape, view.strides))
            fail(Errc::piece_mismatch, "a part is strided; expected contiguous elements", *part.value);
        const std::uint64_t begin = static_cast<std::uint64_t>(view.offset) + part.from;
        for (std::uint64_t done = 0; done < part.count;) {
            const StoredTensor::Place place = stored.locate(begin + done);
            const std::uint64_t count = place.stride == 1 ? std::min(place.count, part.count - done) : 1;
            add_run({.offset = place.offset,
                     .first = part.first + done,
                     .count = count,
                     .source = sources_.number(stored.source(place.source))});
            done += count;
        }
    }

    /// Joins runs that follow each other in the same file.
    void add_run(const IndexedRun& run) {
        if (!runs_.empty()) {
            IndexedRun& last = runs_.back();
            if (last.source == run.source && last.offset + last.count * element_size(dtype_) == run.offset) {
                last.count += run.count;
                return;
            }
        }
        runs_.push_back(run);
    }

    Dtype dtype_;
    std::uint64_t elements_;
    const PartSources& sources_;
    std::optional<Decoding> decoding_ = {};
    std::uint64_t covered_ = 0;
    const LazyTensor* last_value_ = nullptr;
    std::vector<IndexedRun> runs_ = {};
};

LazyTensor flat_whole(std::string name, Dtype dtype, const Shape& shape, std::span<const FlatPart> parts,
                      const PartSources& sources) {
    FlatWhole made(dtype, elements_of(dtype, shape), sources);
    in_order(parts, [&](const FlatPart& part) { made.add(part); });
    made.require_all();
    const std::vector<IndexedRun>& runs = made.runs();
    // One run needs no table, and a tensor without elements no source.
    if (runs.empty()) return {std::move(name), stored_runs(dtype, shape, std::span<const RunPiece>()), Decoding()};
    if (runs.size() == 1)
        return {std::move(name), stored_run(dtype, shape, (*sources.table())[runs.front().source], runs.front().offset),
                made.decoding()};
    return {std::move(name), stored_runs(dtype, shape, sources.table(), runs), made.decoding()};
}

// Parts that are boxes.

void check_inside(const Part& part, Dtype dtype, const Shape& shape, Decoding decoding) {
    const Shape& extent = part.value.shape();
    if (extent.size() != shape.size() || part.start.size() != shape.size())
        fail(Errc::piece_mismatch, "a part has the shape " + to_string(extent) + "; the tensor has " + to_string(shape),
             part.value);
    check_dtype(part.value, dtype, decoding);
    for (std::size_t d = 0; d < shape.size(); ++d)
        if (!Extent{part.start[d], extent[d]}.inside(shape[d]))
            fail(Errc::piece_outside,
                 "a part of shape " + to_string(extent) + " from " + to_string(part.start) +
                     " reaches past the shape " + to_string(shape),
                 part.value);
}

bool starts_before(const Part* a, const Part* b) {
    return std::lexicographical_compare(a->start.begin(), a->start.end(), b->start.begin(), b->start.end());
}

/// Throws pieces_overlap or not_covered. `parts` are inside the shape, not empty, and sorted by their starts.
void check_cover(const std::vector<const Part*>& parts, const Shape& shape, std::uint64_t elements) {
    std::vector<std::uint64_t> places;
    for (const Part* part : parts) {
        places.insert(places.end(), part->start.begin(), part->start.end());
        places.insert(places.end(), part->value.shape().begin(), part->value.shape().end());
    }
    const auto overlap = [&](const Shape& element) {
        const auto holds = [&](const Part* part) {
            for (std::size_t d = 0; d < shape.size(); ++d)
                if (element[d] < part->start[d] || element[d] - part->start[d] >= part->value.shape()[d]) return false;
            return true;
        };
        const auto first = std::find_if(parts.begin(), parts.end(), holds);
        const auto second = std::find_if(first + 1, parts.end(), holds);
        fail(Errc::pieces_overlap, "element " + to_string(element) + " is in two parts, which overlap",
             (*second)->value);
    };
    if (shape.empty() && parts.size() > 1) overlap(shape);
    if (!shape.empty())
        if (const auto shared = Grid(shape, parts.size(), std::move(places)).first_shared()) overlap(*shared);
    std::uint64_t volume = 0;  // no more than the whole, because nothing overlaps
    for (const Part* part : parts) volume += part->value.element_count();
    if (volume == elements) return;
    Error error(Errc::not_covered, std::to_string(elements - volume) + " of " + counted(elements, "element") +
                                       " are in no part: the parts cover " + std::to_string(volume));
    if (!parts.empty()) error.with_path(file_of(parts.back()->value));
    throw error;
}

/// Returns true if the part is complete rows of the whole, contiguous in its file or files.
bool is_rows(const Part& part, const Shape& shape) {
    const StridedView view = part.value.strided_view();
    if (shape.empty() || !is_contiguous(view.shape, view.strides)) return false;
    for (std::size_t d = 1; d < shape.size(); ++d)
        if (part.value.shape()[d] != shape[d]) return false;
    return true;
}

LazyTensor whole_of_rows(std::string name, Dtype dtype, const Shape& shape, const std::vector<const Part*>& parts,
                         std::uint64_t elements, const PartSources& sources) {
    const std::uint64_t row = shape[0] == 0 ? 0 : elements / shape[0];
    std::vector<FlatPart> flat;
    flat.reserve(parts.size());
    for (const Part* part : parts) flat.push_back({part->start[0] * row, part->value.element_count(), &part->value, 0});
    return flat_whole(std::move(name), dtype, shape, flat, sources);
}

/// Makes a tensor of a sub-byte dtype: its parts are rows, each of which is whole bytes in one place.
LazyTensor whole_of_packed(std::string name, Dtype dtype, const Shape& shape, const std::vector<const Part*>& parts,
                           std::uint64_t elements) {
    std::vector<RunPiece> runs;
    for (const Part* part : parts) {
        const auto place = part->value.placement();
        if (!is_rows(*part, shape) || !place) refuse_packed(part->value, " that are not complete rows");
        runs.push_back(
            {place->source, place->extent.offset, part->start[0] * (elements / shape[0]), part->value.element_count()});
    }
    return {std::move(name), stored_runs(dtype, shape, runs)};
}

/// Makes boxes of a part, whose elements may be in several runs.
class Boxes {
public:
    Boxes(const Shape& shape, const PartSources& sources) : rank_(shape.size()), sources_(sources) {}

    void add(const Part& part) {
        const StoredTensor& stored = *part.value.stored();
        const StridedView view = part.value.strided_view();
        const std::uint64_t elements = part.value.element_count();
        if (stored.in_one_run()) {
            const StoredTensor::Place base = stored.locate(0);
            const std::uint64_t size = stored.unit_size();
            return push(stored, base.source, base.offset + static_cast<std::uint64_t>(view.offset) * size, part.start,
                        part.value.shape(), view.strides);
        }
        if (!is_contiguous(view.shape, view.strides)) {
            require_ascending(part, view);
            return add_strided(part, view.strides, part.start, view.shape, static_cast<std::uint64_t>(view.offset));
        }
        for (std::uint64_t done = 0; done < elements;) {
            const StoredTensor::Place place = stored.locate(static_cast<std::uint64_t>(view.offset) + done);
            const std::uint64_t count = place.stride == 1 ? std::min(place.count, elements - done) : 1;
            add_run(part, {.stored = &stored, .source = place.source, .offset = place.offset}, done, count);
            done += count;
        }
    }

    const std::vector<IndexedBox>& all() const { return boxes_; }

private:
    struct Run {
        const StoredTensor* stored;
        std::uint32_t source;
        std::uint64_t offset;
    };

    /// Cuts elements [first, first + count) of the part, which are contiguous in a source, into boxes: each is as many
    /// whole rows of the innermost possible dimension as there are.
    void add_run(const Part& part, Run run, std::uint64_t first, std::uint64_t count) {
        const Shape& shape = part.value.shape();
        const Strides strides = row_major(shape);
        while (count > 0) {
            // The outermost dimension at whose slices the run stands, and of which it holds at least one.
            std::size_t d = 0;
            while (d + 1 < rank_ && (first % step(strides, d) != 0 || count < step(strides, d))) ++d;
            const std::uint64_t inner = step(strides, d);
            const std::uint64_t at = first / inner % shape[d];
            const std::uint64_t slices = std::min(count / inner, shape[d] - at);
            Shape start = part.start;
            Shape extent = shape;
            for (std::size_t i = 0; i < d; ++i) {
                start[i] += first / step(strides, i) % shape[i];
                extent[i] = 1;
            }
            start[d] += at;
            extent[d] = slices;
            push(*run.stored, run.source, run.offset, start, extent, strides);
            run.offset += slices * inner * run.stored->unit_size();
            first += slices * inner;
            count -= slices * inner;
        }
    }

    static void require_ascending(const Part& part, const StridedView& view) {
        for (std::size_t d = 0; d < view.shape.size(); ++d)
            if (view.shape[d] > 1 && view.strides[d] <= 0)
                fail(Errc::piece_mismatch, "a part in several pieces is strided backwards; expected ascending elements",
                     part.value);
    }

    /// Makes boxes of the region of `extent` at `start`, which begins at element `at` of its base: each is as many
    /// slices along the outermost dimension as stand in one run. A slice that is in several runs is cut in turn.
    void add_strided(const Part& part, const Strides& strides, Shape start, const Shape& extent, std::uint64_t at) {
        const StoredTensor& stored = *part.value.stored();
        std::size_t d = 0;
        while (d + 1 < rank_ && extent[d] == 1) ++d;
        std::uint64_t reach = 1;  // elements of the base from the first of a slice to its last
        for (std::size_t i = d + 1; i < rank_; ++i) reach += (extent[i] - 1) * step(strides, i);
        Shape box = extent;
        for (std::uint64_t left = extent[d]; left > 0; left -= box[d]) {
            const StoredTensor::Place place = stored.locate(at);
            const std::uint64_t held = place.stride == 1 ? place.count : 1;
            box[d] = 1;
            if (held >= reach) {
                if (left > 1) box[d] = std::min(left, (held - reach) / step(strides, d) + 1);
                push(stored, place.source, place.offset, start, box, strides);
            } else {
                add_strided(part, strides, start, box, at);
            }
            start[d] += box[d];
            at += box[d] * step(strides, d);
        }
    }

    static std::uint64_t step(const Strides& strides, std::size_t d) { return static_cast<std::uint64_t>(strides[d]); }

    void push(const StoredTensor& stored, std::uint32_t source, std::uint64_t offset, const Shape& start,
              const Shape& extent, const Strides& strides) {
        boxes_.push_back({offset, {start, extent}, strides, sources_.number(stored.source(source))});
    }

    std::size_t rank_;
    const PartSources& sources_;
    std::vector<IndexedBox> boxes_ = {};
};

LazyTensor whole_of_boxes(std::string name, Dtype dtype, const Shape& shape, std::span<const Part> parts,
                          const PartSources& sources) {
    const std::uint64_t elements = elements_of(dtype, shape);
    std::vector<const Part*> kept;
    std::optional<Decoding> decoding;
    for (const Part& part : parts) {
        if (!decoding && part.value.element_count() > 0) decoding = part.value.decoding();
        check_inside(part, dtype, shape, part.value.element_count() > 0 ? *decoding : part.value.decoding());
        if (part.value.element_count() > 0) kept.push_back(&part);
    }
    std::stable_sort(kept.begin(), kept.end(), starts_before);
    check_cover(kept, shape, elements);
    if (!whole_bytes(dtype) && kept.size() == 1) return kept.front()->value.renamed(std::move(name));
    if (!whole_bytes(dtype)) return whole_of_packed(std::move(name), dtype, shape, kept, elements);
    const auto rows = [&](const Part* part) { return is_rows(*part, shape); };
    if (!kept.empty() && std::all_of(kept.begin(), kept.end(), rows))
        return whole_of_rows(std::move(name), dtype, shape, kept, elements, sources);
    if (kept.size() == 1) return kept.front()->value.renamed(std::move(name));  // it is the whole
    Boxes boxes(shape, sources);
    for (const Part* part : kept) boxes.add(*part);
    return {std::move(name), stored_boxes(dtype, shape, sources.table(), boxes.all()), decoding.value_or(Decoding())};
}

}  // namespace

void PartSources::add(const std::shared_ptr<const Source>& source) {
    if (numbers_.try_emplace(source.get(), static_cast<std::uint32_t>(sources_.size())).second)
        sources_.push_back(source);
}

void PartSources::add(const LazyTensor& value) {
    const StoredTensor& stored = *value.stored();
    stored.each_piece([&](const StoredTensor::Piece& piece, std::size_t) { add(stored.shared_source(piece.source)); });
}

const std::shared_ptr<const SourceTable>& PartSources::table() const {
    if (!table_) table_ = std::make_shared<const SourceTable>(sources_);
    return table_;
}

std::uint32_t PartSources::number(const Source& source) const { return numbers_.at(&source); }

LazyTensor whole(std::string name, Dtype dtype, const Shape& shape, std::span<const FlatPart> parts,
                 const PartSources& sources) {
    const std::string about = name;
    return about_tensor(about, [&] { return flat_whole(std::move(name), dtype, shape, parts, sources); });
}

LazyTensor whole(std::string name, Dtype dtype, const Shape& shape, std::span<const Part> parts,
                 const PartSources& sources) {
    const std::string about = name;
    return about_tensor(about, [&] { return whole_of_boxes(std::move(name), dtype, shape, parts, sources); });
}

LazyTensor whole(std::string name, Dtype dtype, const Shape& shape, std::span<const Part> parts) {
    PartSources sources;
    for (const Part& part : parts) sources.add(part.value);
    return whole(std::move(name), dtype, shape, parts, sources);
}

}  // namespace safemap::SAFEMAP_ABI
