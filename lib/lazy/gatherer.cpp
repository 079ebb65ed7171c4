// Reads values from stored pieces. Data flow:
// 1. A range of bytes or a box of a value becomes *jobs*: boxes whose stored elements have one place in memory.
// 2. A job is cut into *parts*: rows of elements that are at equal distances in one source.
// 3. The parts of all jobs are collected and sorted by source and offset. Near ones are read together, whichever
//    tensors they belong to: long contiguous parts straight to their places, the others into a window.
// 4. The window is scattered to the places of the jobs; parts that become columns of the output, several at a time.
// 5. When all parts are read, the stored elements of each job are decoded and cast.
// From top to bottom:
//   - Part, and the functions that copy parts from a window: one at a time, columns together, rows together
//   - with_whole_rows(): rows of sub-byte elements as whole bytes
//   - Gatherer::Impl: finds the pieces that overlap a box, makes parts of them, reads, scatters, decodes and casts
//   - Gatherer: checks the arguments
#include "lazy/gatherer.hpp"

#include "base/faults.hpp"
#include "base/watch.hpp"
#include "lazy/boxes_of_range.hpp"
#include "lazy/regions.hpp"
#include "lazy/scattered_read.hpp"
#include "lazy/stored_tensor.hpp"
#include "tensor/convert.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI {
namespace {

constexpr std::size_t window_size = 1U << 20;    // bytes read at once for scattered parts
constexpr std::size_t rows_window = 256U << 10;  // the same for rows, which are copied while they are in the CPU cache
// Extent of a part in the window: as long as the window, and with room for neighbours that begin a little later.
constexpr std::size_t shared_window = window_size - ScatteredExtent::worthwhile_gap;
constexpr std::size_t cast_size = 512U << 10;  // bytes of stored elements converted at once
constexpr std::size_t max_parts = 8192;        // collected before they are read
constexpr std::size_t max_jobs = 2048;         // collected before they are read, decoded and cast
constexpr std::uint64_t direct_size = Gatherer::long_part;
// The same for a file, which reads many parts with one call: from 1 KiB on, a piece of preadv costs less than a copy.
constexpr std::uint64_t file_direct_size = 1U << 10;
constexpr std::uint64_t worthwhile_gap = ScatteredExtent::worthwhile_gap;
constexpr std::size_t cache_line = 64;

// Copies `count` units, `in_step` apart from byte `offset` of a source on, to places `out_step` apart from byte `out`
// of the job on. `rows` such rows follow each other at distance `row_in` in the source and `row_out` in the output; if
// there are several, each row is contiguous.
struct Part {
    const Source* source;
    std::uint64_t offset;
    std::uint64_t out;
    std::uint64_t count;
    std::int64_t in_step;   // bytes
    std::int64_t out_step;  // bytes
    std::uint64_t rows = 1;
    std::uint64_t row_in = 0;  // bytes
    std::int64_t row_out = 0;  // bytes
    std::uint32_t window = 0;  // its position in the window, or `straight`
    std::uint32_t job = 0;     // the job that it belongs to

    static constexpr std::uint32_t straight = UINT32_MAX;  // read to its place, not into the window

    std::uint64_t low() const noexcept { return in_step < 0 ? offset - row_span() : offset; }
    std::uint64_t high(unsigned unit) const noexcept { return low() + row_span() + (rows - 1) * row_in + unit; }

private:
    std::uint64_t row_span() const noexcept { return (count - 1) * static_cast<std::uint64_t>(std::abs(in_step)); }
};

// A box of a value: the place of its stored elements, and what becomes of them when all are read.
struct Job {
    const LazyTensor* tensor;
    std::span<std::byte> stored;  // the place: the output, or a buffer if the value is cast
    std::byte* cast;              // the output, if the value is cast; otherwise null
    CastCounts* counts;           // the statistics that the cast is added to
    Dtype dtype;                  // dtype of the value
    unsigned unit;                // bytes of a stored unit
};
static_assert(window_size + cast_size + max_parts * sizeof(Part) + max_jobs * sizeof(Job) +
                  ScatteredExtent::most_pieces * sizeof(std::span<std::byte>) <=
              Gatherer::most_memory);

template <class Unit>
void copy_units(const std::byte* in, std::int64_t in_step, std::byte* out, std::int64_t out_step, std::uint64_t count) {
    for (; count > 0; --count, in += in_step, out += out_step) std::memcpy(out, in, sizeof(Unit));
}

struct Unit16 {
    std::byte bytes[16];
};

/// Calls work() with an object of `unit` bytes.
template <class Work> void with_unit(unsigned unit, Work&& work) {
    switch (unit) {
        case 1: return work(std::uint8_t());
        case 2: return work(std::uint16_t());
        case 4: return work(std::uint32_t());
        case 8: return work(std::uint64_t());
        default: return work(Unit16());
    }
}

void copy_part(const Part& part, unsigned unit, const std::byte* window, std::byte* out) {
    const std::byte* const in = window + part.window;
    if (part.in_step == static_cast<std::int64_t>(unit) && part.out_step == part.in_step) {
        std::memcpy(out + part.out, in, part.count * unit);
        return;
    }
    with_unit(unit, [&](auto each) {
        copy_units<decltype(each)>(in, part.in_step, out + part.out, part.out_step, part.count);
    });
}

/// Returns true if `next` fills the column of the output next to that of `part`, and both are contiguous in the window.
bool are_neighbours(const Part& part, const Part& next, unsigned unit) noexcept {
    return part.job == next.job && part.rows == 1 && next.rows == 1 && next.out == part.out + unit &&
           next.count == part.count && next.out_step == part.out_step &&
           part.in_step == static_cast<std::int64_t>(unit) && next.in_step == part.in_step;
}

/// Copies neighbouring columns, at one time as many as fill a cache line of the output.
template <class Unit> void copy_columns(std::span<const Part> columns, const std::byte* window, std::byte* out) {
    constexpr std::size_t most = cache_line / sizeof(Unit);
    const std::int64_t out_step = columns.front().out_step;
    const std::uint64_t rows = columns.front().count;
    while (!columns.empty()) {
        std::array<const std::byte*, most> in = {};
        const std::size_t count = std::min(most, columns.size());
        for (std::size_t c = 0; c < count; ++c) in[c] = window + columns[c].window;
        std::byte* to = out + columns.front().out;
        const auto copy_rows = [&](std::size_t width) {
            for (std::uint64_t row = 0; row < rows; ++row, to += out_step)
                for (std::size_t c = 0; c < width; ++c)
                    std::memcpy(to + c * sizeof(Unit), in[c] + row * sizeof(Unit), sizeof(Unit));
        };
        if (count == most) copy_rows(most);  // a width that the compiler knows
        else copy_rows(count);
        columns = columns.subspan(count);
    }
}

/// Returns true if the rows of `next` continue the rows of `part` in the output.
bool continue_rows(const Part& part, const Part& next, unsigned unit) noexcept {
    return part.job == next.job && next.out == part.out + part.count * unit && next.rows == part.rows &&
           next.row_out == part.row_out;
}

/// Copies the rows of neighbours side by side. `size` is the bytes of each row if the compiler should know it, else 0.
template <std::size_t size>
void copy_rows(std::span<const Part> parts, unsigned unit, const std::byte* window, std::byte* out) {
    for (std::uint64_t row = 0; row < parts.front().rows; ++row) {
        // Unsigned arithmetic wraps, so rows may run backwards.
        std::byte* to = out + (parts.front().out + row * static_cast<std::uint64_t>(parts.front().row_out));
        for (const Part& part : parts) {
            const std::size_t length = size != 0 ? size : part.count * unit;
            std::memcpy(to, window + part.window + row * part.row_in, length);
            to += length;
        }
    }
}

/// Copies side by side as many parts as the L1 cache holds streams; returns how many. Copied one after the other, each
/// part would write into cache lines that were evicted before the next part writes into them.
std::size_t copy_rows(std::span<const Part> parts, unsigned unit, const std::byte* window, std::byte* out) {
    constexpr std::size_t most = 16;
    parts = parts.first(std::min(most, parts.size()));
    const std::uint64_t count = parts.front().count;
    const bool alike = std::all_of(parts.begin(), parts.end(), [&](const Part& part) { return part.count == count; });
    switch (alike ? count * unit : 0) {
        case 16: copy_rows<16>(parts, unit, window, out); break;
        case 32: copy_rows<32>(parts, unit, window, out); break;
        case 64: copy_rows<64>(parts, unit, window, out); break;
        default: copy_rows<0>(parts, unit, window, out);
    }
    return parts.size();
}

// Cannot overflow: the box is inside a shape whose element count is known.
std::uint64_t units_of(const Box& box) { return *element_count(box.extent); }

void require_range(const LazyTensor& tensor, Dtype dtype, Extent range) {
    const std::uint64_t size = byte_size(dtype, tensor.element_count()).value_or(0);
    if (!range.inside(size))
        throw Error(Errc::index_out_of_range, std::to_string(range.size) + " bytes from byte " +
                                                  std::to_string(range.offset) + " are outside its " +
                                                  std::to_string(size) + " bytes");
}

void require_inside(const LazyTensor& tensor, const Box& box, std::size_t out_size) {
    const Shape& shape = tensor.shape();
    if (!is_inside(box, shape))
        throw Error(Errc::index_out_of_range, "the region at " + to_string(box.start) + " of " + to_string(box.extent) +
                                                  " is outside shape " + to_string(shape));
    const auto size = byte_size(tensor.dtype(), units_of(box));
    if (!size) throw Error(Errc::partial_byte_slice, "the region does not start and end at whole bytes");
    if (*size != out_size)
        throw Error(Errc::invalid_argument, "the buffer has " + std::to_string(out_size) +
                                                " bytes, but the region has " + std::to_string(*size));
}

// Merges trailing dimensions that are contiguous. Rows of a sub-byte dtype may fill whole bytes only when merged.
LazyTensor with_whole_rows(const LazyTensor& tensor) {
    StridedView view = tensor.strided_view();
    while (view.shape.size() > 1) {
        const std::size_t last = view.shape.size() - 1;
        if (view.strides[last - 1] != view.strides[last] * static_cast<std::int64_t>(view.shape[last])) break;
        StridedView merged;
        merged.offset = view.offset;
        for (std::size_t d = 0; d < last; ++d) {
            merged.shape.push_back(view.shape[d]);
            merged.strides.push_back(view.strides[d]);
        }
        merged.shape.back() *= view.shape[last];
        merged.strides.back() = view.strides[last];
        view = std::move(merged);
    }
    return LazyTensor(tensor.name(), tensor.stored(), std::move(view), tensor.decoding());
}

}  // namespace

class Gatherer::Impl {
public:
    void begin(const GatherRoom& room) {
        jobs_.clear();
        drop_parts();
        watch_ = room.watch;
        reader_ = room.reader;
        scratch_ = room.scratch;
        scratch_used_ = 0;
    }

    /// Says what the next calls of add() are for. The tensor must live until finish().
    void want(const LazyTensor& tensor, Dtype dtype, CastCounts* counts) {
        if (watch_ != nullptr) watch_->check_stop();
        tensor_ = &tensor;
        dtype_ = dtype;
        stored_ = tensor.stored().get();
        cast_counts_ = counts != nullptr ? counts : &counts_;
    }

    /// Adds a box of `view`: the wanted tensor, or the same elements in another shape.
    void add(const LazyTensor& view, const Box& box, std::span<std::byte> out) {
        if (out.empty()) return;
        if (dtype_ != stored_->dtype()) return add_cast(view, box, out);
        add_job({tensor_, out, nullptr, cast_counts_, dtype_, stored_->unit_size()});
        walk(view, box);
    }

    // Adds a byte range of a view that is contiguous and neither cast nor decoded: a range of stored elements.
    void add_contiguous(std::uint64_t first_byte, std::span<std::byte> out) {
        const unsigned unit = stored_->unit_size();
        add_job({tensor_, out, nullptr, cast_counts_, dtype_, unit});
        if (stored_->in_boxes()) walk_range(*stored_, first_byte / unit, out.size() / unit);
        else emit(first_byte / unit, 0, {out.size() / unit, 1, unit});
    }

    /// Reads, decodes and casts what was added.
    void finish() {
        read_parts();
        for (const Job& job : jobs_) {
            const Dtype from = job.tensor->stored()->dtype();
            const Decoding decoding = job.tensor->decoding();
            if (decoding.byte_swap) byte_swap(job.stored, swap_size(from));
            if (decoding.conj) conjugate(from, job.stored);
            if (decoding.neg) negate(from, job.stored);
            if (job.cast != nullptr) cast(job, from);
        }
        jobs_.clear();
        scratch_used_ = 0;
    }

    CastCounts take_counts() noexcept { return std::exchange(counts_, {}); }

private:
    // Halves the box until its stored elements fit into a fixed part of the scratch. Those of a tensor in boxes may
    // take all of it: the fewer halves, the more of each piece is read at once. Cuts along the first dimension with
    // more than one element, so that both halves are contiguous in `out`.
    void add_cast(const LazyTensor& view, const Box& box, std::span<std::byte> out) {
        const std::uint64_t count = units_of(box);
        const std::uint64_t size = count * element_size(stored_->dtype());
        if (size > (stored_->in_boxes() ? std::max(cast_size, scratch_.size()) : cast_size)) {
            std::size_t d = 0;
            while (box.extent[d] == 1) ++d;
            Box low = box;
            Box high = box;
            low.extent[d] = box.extent[d] / 2;
            high.start[d] += low.extent[d];
            high.extent[d] -= low.extent[d];
            const auto cut = static_cast<std::size_t>(units_of(low) * element_size(dtype_));
            add_cast(view, low, out.first(cut));
            add_cast(view, high, out.subspan(cut));
            return;
        }
        const auto raw = take_scratch(static_cast<std::size_t>(size));
        add_job({tensor_, raw, out.data(), cast_counts_, dtype_, stored_->unit_size()});
        walk(view, box);
    }

    // Returns a place for the stored elements of a job. If no space is left, finishes the jobs before it.
    std::span<std::byte> take_scratch(std::size_t size) {
        if (scratch_.size() < cast_size) {
            raw_.resize(cast_size);
            scratch_ = raw_;
        }
        if (jobs_.size() == max_jobs || size > scratch_.size() - scratch_used_) finish();
        const auto taken = scratch_.subspan(scratch_used_, size);
        scratch_used_ += size;
        return taken;
    }

    void add_job(const Job& job) {
        if (jobs_.size() == max_jobs) finish();
        jobs_.push_back(job);
    }

    static void cast(const Job& job, Dtype from) {
        const std::uint64_t count = job.stored.size() / element_size(from);
        const std::span out(job.cast, static_cast<std::size_t>(count * element_size(job.dtype)));
        const ConvertCounts converted = convert(from, job.stored, job.dtype, out);
        *job.counts += {count, converted.overflowed, converted.non_finite};
    }

    // Reads a range of elements of the base, box by box.
    void walk_range(const StoredTensor& stored, std::uint64_t first, std::uint64_t count) {
        const StridedView whole{stored.shape(), row_major(stored.shape()), 0};
        std::uint64_t out = 0;
        each_box_of_range(stored.shape(), first, count, [&](const Box& box, std::uint64_t elements) {
            walk_boxes(*BaseRegion::of(stored, whole, box), out);
            out += elements * stored.unit_size();
        });
    }

    // Adds a part for each row, or for several rows at once, that a piece has of the region. Output begins at byte
    // `to`.
    void walk_boxes(const BaseRegion& region, std::uint64_t to) {
        const std::int64_t unit = stored_->unit_size();
        region.each_part(*stored_, [&](BoxPart&& part) {
            nearest_last(part.axes, part.in, part.out);
            if (part.axes.empty()) part.axes.push_back({1, unit, unit});
            const Source* const source = &stored_->source(part.source);
            const Axis row = part.axes.back();
            part.axes.pop_back();
            Axis rows = {1, 0, 0};
            if (!part.axes.empty() && row.in == unit && row.out == unit) {
                rows = part.axes.back();
                part.axes.pop_back();
            }
            each_step(part.axes, static_cast<std::uint64_t>(part.in), to + static_cast<std::uint64_t>(part.out),
                      [&](std::uint64_t in, std::uint64_t out) {
                          add_rows({source, in, out, row.extent, row.in, row.out}, rows);
                      });
        });
    }

    // Turns the box into axes, those with the smallest stride in the source last, and adds a row for each step of the
    // outer axes.
    void walk(const LazyTensor& tensor, const Box& box) {
        const StridedView view = tensor.strided_view();
        if (stored_->in_boxes())
            if (const auto region = BaseRegion::of(*stored_, view, box)) return walk_boxes(*region, 0);
        std::vector<Axis> axes;
        std::int64_t in = view.offset;
        std::int64_t row = 1;  // elements of the output from one index to the next
        for (std::size_t d = view.shape.size(); d-- > 0;) {
            in += static_cast<std::int64_t>(box.start[d]) * view.strides[d];
            if (box.extent[d] != 1) axes.insert(axes.begin(), {box.extent[d], view.strides[d], row});
            row *= static_cast<std::int64_t>(box.extent[d]);
        }
        join(axes);
        std::int64_t out = 0;
        to_units(axes, in);
        nearest_last(axes, in, out);
        if (axes.empty()) axes.push_back({1, 1, stored_->unit_size()});
        long_last(axes);
        const Axis inner = axes.back();
        axes.pop_back();
        each_step(axes, static_cast<std::uint64_t>(in), static_cast<std::uint64_t>(out),
                  [&](std::uint64_t at, std::uint64_t to) { emit(at, to, inner); });
    }

    // Swaps the last two axes if the last one has only a few elements: a part costs more than they do. The elements of
    // the other axis are read together, too, because they are near each other.
    void long_last(std::vector<Axis>& axes) const {
        constexpr std::uint64_t few = 8;
        if (axes.size() < 2) return;
        Axis& outer = axes[axes.size() - 2];
        Axis& inner = axes.back();
        const std::uint64_t distance = static_cast<std::uint64_t>(outer.in) * stored_->unit_size();
        if (inner.extent <= few && outer.extent > inner.extent && distance <= worthwhile_gap) std::swap(outer, inner);
    }

    // Converts elements to units in the base and to bytes in the output. Throws partial_byte_slice if elements of a
    // sub-byte dtype do not form ranges of whole bytes.
    void to_units(std::vector<Axis>& axes, std::int64_t& in) const {
        const Dtype dtype = stored_->dtype();
        if (whole_bytes(dtype)) {
            for (Axis& axis : axes) axis.out *= stored_->unit_size();
            return;
        }
        const auto width = static_cast<std::int64_t>(bits(dtype));
        const auto to_bytes = [&](std::int64_t elements) {
            if (elements * width % 8 != 0)
                throw Error(Errc::partial_byte_slice,
                            "a region of " + std::string(name(dtype)) + " does not start and end at whole bytes");
            return elements * width / 8;
        };
        in = to_bytes(in);
        if (axes.empty() || axes.back().in != 1 || axes.back().out != 1) axes.push_back({1, 1, 1});
        const std::size_t last = axes.size() - 1;
        for (std::size_t i = 0; i < last; ++i) {
            axes[i].in = to_bytes(axes[i].in);
            axes[i].out = to_bytes(axes[i].out);
        }
        axes[last].extent = static_cast<std::uint64_t>(to_bytes(static_cast<std::int64_t>(axes[last].extent)));
    }

    // Calls visit(in, out) for each step along the axes.
    template <class Visit>
    static void each_step(const std::vector<Axis>& axes, std::uint64_t in, std::uint64_t out, Visit&& visit) {
        std::vector<std::uint64_t> at(axes.size(), 0);
        for (;;) {
            visit(in, out);
            std::size_t d = axes.size();
            for (; d-- > 0;) {
                // Unsigned arithmetic wraps, so adding a negative step is correct.
                in += static_cast<std::uint64_t>(axes[d].in);
                out += static_cast<std::uint64_t>(axes[d].out);
                if (++at[d] < axes[d].extent) break;
                in -= static_cast<std::uint64_t>(axes[d].in) * axes[d].extent;
                out -= static_cast<std::uint64_t>(axes[d].out) * axes[d].extent;
                at[d] = 0;
            }
            if (d == SIZE_MAX) return;
        }
    }

    // Adds one row: one part for each piece that it overlaps.
    void emit(std::uint64_t in, std::uint64_t out, const Axis& row) {
        const auto unit = static_cast<std::int64_t>(stored_->unit_size());
        const auto step = static_cast<std::uint64_t>(row.in);
        for (std::uint64_t left = row.extent; left > 0;) {
            const StoredTensor::Place place = stored_->locate(in);
            const std::uint64_t here = step == 0 ? left : std::min(left, (place.count - 1) / step + 1);
            add({&stored_->source(place.source), place.offset, out, here, row.in * place.stride * unit, row.out});
            in += here * step;
            out += here * static_cast<std::uint64_t>(row.out);
            left -= here;
        }
    }

    unsigned unit_of(const Part& part) const noexcept { return jobs_[part.job].unit; }
    const std::string& tensor_of(const Part& part) const noexcept { return jobs_[part.job].tensor->name(); }

    bool contiguous(const Part& part) const noexcept {
        const auto unit = static_cast<std::int64_t>(unit_of(part));
        return part.rows == 1 && (part.count == 1 || (part.in_step == unit && part.out_step == unit));
    }

    Extent extent_of(const Part& part) const noexcept { return {part.low(), part.high(unit_of(part)) - part.low()}; }

    /// Returns the memory that a part is read into.
    std::span<std::byte> memory_of(const Part& part) {
        const Extent extent = extent_of(part);
        if (part.window == Part::straight) return jobs_[part.job].stored.subspan(part.out, extent.size);
        return std::span(window_).subspan(part.window - (part.offset - extent.offset), extent.size);
    }

    /// Reads `parts`, which read_ was prepared for. The error of a failure has the tensor that cannot be read.
    void read(std::span<const Part> parts) {
        if (watch_ != nullptr) watch_->check_stop();
        const Source& source = *parts.front().source;
        try {
            // A source of the caller may not add its name to errors.
            about_file([&] { return source.name(); }, [&] { read_.read(source, reader_); });
        } catch (Error& error) {
            if (error.code() != Errc::cancelled) find_unreadable(parts);
            error.with_tensor(tensor_of(parts.front()));
            throw;
        }
    }

    /// Throws the error of the first part that cannot be read by itself, if parts of several tensors were read
    /// together.
    void find_unreadable(std::span<const Part> parts) {
        const LazyTensor* const first = jobs_[parts.front().job].tensor;
        const auto of_first = [&](const Part& part) { return jobs_[part.job].tensor == first; };
        if (std::all_of(parts.begin(), parts.end(), of_first)) return;
        for (const Part& part : parts) {
            const auto name = [&] { return part.source->name(); };
            about_tensor(tensor_of(part),
                         [&] { about_file(name, [&] { part.source->read_at(part.low(), memory_of(part)); }); });
        }
    }

    /// Adds a part of the last job, and reads the parts if there are many.
    void collect(const Part& part) {
        parts_.push_back(part);
        parts_.back().job = last_job();
        if (part.rows > 1) at_once_ = rows_window;
        if (parts_.size() == max_parts) read_parts();
    }

    std::uint32_t last_job() const noexcept { return static_cast<std::uint32_t>(jobs_.size() - 1); }

    void drop_parts() noexcept {
        parts_.clear();
        at_once_ = window_size;
    }

    // Adds a part. Unless it is long, cuts it into parts that fit into the window. Elements that are far apart become
    // one part each.
    void add(Part part) {
        part.job = last_job();
        const unsigned unit = unit_of(part);
        if (contiguous(part) && part.count * unit >= direct_size) return collect(part);
        const auto distance = static_cast<std::uint64_t>(std::abs(part.in_step));
        const std::uint64_t most = distance == 0               ? part.count
                                   : distance > worthwhile_gap ? 1
                                                               : (shared_window - unit) / distance + 1;
        while (part.count > 0) {
            Part piece = part;
            piece.count = std::min(part.count, most);
            collect(piece);
            part.offset += piece.count * static_cast<std::uint64_t>(part.in_step);
            part.out += piece.count * static_cast<std::uint64_t>(part.out_step);
            part.count -= piece.count;
        }
    }

    // Adds contiguous rows: as one part if they are near each other, cut so that each part fits into the window.
    void add_rows(Part row, const Axis& rows) {
        const std::uint64_t size = row.count * stored_->unit_size();
        const auto distance = static_cast<std::uint64_t>(rows.in);
        const bool together = size < direct_size && distance >= size && distance - size <= worthwhile_gap;
        const std::uint64_t most = together ? (rows_window - size) / distance + 1 : 1;
        for (std::uint64_t left = rows.extent; left > 0;) {
            const std::uint64_t count = std::min(left, most);
            if (count == 1) add(row);
            else {
                Part several = row;
                several.rows = count;
                several.row_in = distance;
                several.row_out = rows.out;
                collect(several);
            }
            row.offset += count * distance;
            row.out += count * static_cast<std::uint64_t>(rows.out);
            left -= count;
        }
    }

    // Reads the collected parts, near ones together. Scatters the window whenever it is full.
    void read_parts() {
        const auto before = [](const Part& a, const Part& b) {
            return a.source != b.source ? std::less<>()(a.source, b.source) : a.low() < b.low();
        };
        if (!std::is_sorted(parts_.begin(), parts_.end(), before)) std::sort(parts_.begin(), parts_.end(), before);

        std::span<Part> left = parts_;
        std::span<Part> in_window;
        std::size_t filled = 0;
        while (!left.empty()) {
            const Run run = near_each_other(left);
            if (filled + run.window > at_once_) {
                scatter(in_window);
                in_window = {};
                filled = 0;
            }
            const std::span<Part> together = left.first(run.count);
            prepare(together, run, filled);
            read(together);
            in_window = with_those_in_window(in_window, together);
            filled += run.window;
            left = left.subspan(run.count);
        }
        scatter(in_window);
        drop_parts();
    }

    struct Run {
        std::size_t count;
        std::uint64_t offset;
        std::uint64_t window;  // bytes that go into the window
    };

    // Returns how many of `parts`, from the first one on, are cheaper to read together. Marks those that are read
    // straight to their places. A long part that overlaps another is read by itself.
    Run near_each_other(std::span<Part> parts) const {
        const Source* const source = parts.front().source;
        const bool file = source->is_file();
        ScatteredExtent read(file, at_once_);
        std::size_t count = 0;
        for (bool alone = false; !alone && count < parts.size() && parts[count].source == source; ++count) {
            const Extent extent = extent_of(parts[count]);
            const bool candidate = extent.size >= file_direct_size && contiguous(parts[count]);
            const bool overlaps = candidate && ((count > 0 && extent.offset < read.extent().end()) ||
                                                overlaps_next(parts.subspan(count), extent.end()));
            const bool straight = candidate && (extent.size >= direct_size || (file && !overlaps));
            alone = straight && overlaps;
            if ((alone && count > 0) || !read.add(extent, straight)) break;
            parts[count].window = straight ? Part::straight : 0;
        }
        if (count > 1 || !contiguous(parts.front())) return {count, read.extent().offset, read.window()};
        parts.front().window = Part::straight;
        return {1, read.extent().offset, 0};
    }

    static bool overlaps_next(std::span<const Part> parts, std::uint64_t end) noexcept {
        return parts.size() > 1 && parts[1].source == parts[0].source && parts[1].low() < end;
    }

    // Prepares read_ for `parts`. The window is filled from `filled` on.
    void prepare(std::span<Part> parts, const Run& run, std::size_t filled) {
        if (run.window > 0) window_.resize(window_size);
        read_.begin(run.offset, std::span(window_).subspan(run.window > 0 ? filled : 0));
        for (Part& part : parts) {
            const Extent extent = extent_of(part);
            if (part.window == Part::straight) read_.add_straight(extent.offset, memory_of(part));
            else {
                const std::size_t at = filled + read_.add_to_window(extent);
                part.window = static_cast<std::uint32_t>(at + (part.offset - extent.offset));
            }
        }
    }

    // Returns `in_window` and behind it those of the next parts that are in the window.
    static std::span<Part> with_those_in_window(std::span<Part> in_window, std::span<Part> next) {
        if (in_window.empty()) in_window = next.first(0);
        Part* end = in_window.data() + in_window.size();
        for (const Part& part : next) {
            if (part.window == Part::straight) continue;
            if (end != &part) *end = part;
            ++end;
        }
        return {in_window.data(), end};
    }

    void scatter(std::span<Part> parts) {
        // Rows that continue each other in the output are written together.
        const auto has_rows = [](const Part& part) { return part.rows > 1; };
        if (std::any_of(parts.begin(), parts.end(), has_rows))
            std::sort(parts.begin(), parts.end(),
                      [](const Part& a, const Part& b) { return a.job != b.job ? a.job < b.job : a.out < b.out; });
        while (!parts.empty()) {
            const unsigned unit = unit_of(parts.front());
            std::byte* const out = jobs_[parts.front().job].stored.data();
            std::size_t count = 1;
            if (parts.front().rows > 1) {
                while (count < parts.size() && continue_rows(parts[count - 1], parts[count], unit)) ++count;
                count = copy_rows(parts.first(count), unit, window_.data(), out);
                parts = parts.subspan(count);
                continue;
            }
            while (count < parts.size() && are_neighbours(parts[count - 1], parts[count], unit)) ++count;
            if (count == 1) copy_part(parts.front(), unit, window_.data(), out);
            else
                with_unit(unit,
                          [&](auto each) { copy_columns<decltype(each)>(parts.first(count), window_.data(), out); });
            parts = parts.subspan(count);
        }
    }

    // The tensor that is being added.
    const LazyTensor* tensor_ = nullptr;
    Dtype dtype_ = {};
    CastCounts* cast_counts_ = nullptr;
    const StoredTensor* stored_ = nullptr;

    std::vector<Job> jobs_;
    std::vector<Part> parts_;
    std::size_t at_once_ = window_size;
    ScatteredRead read_;
    std::vector<std::byte> window_;
    const Watch* watch_ = nullptr;
    SourceReader* reader_ = nullptr;
    std::span<std::byte> scratch_;  // for the stored elements of values that are cast
    std::size_t scratch_used_ = 0;
    std::vector<std::byte> raw_;  // the scratch if the caller gives none
    CastCounts counts_;           // casts without statistics of the caller
};

Gatherer::Gatherer() : impl_(std::make_unique<Impl>()) {}
Gatherer::~Gatherer() = default;
Gatherer::Gatherer(Gatherer&&) noexcept = default;
Gatherer& Gatherer::operator=(Gatherer&&) noexcept = default;

namespace {

/// Runs `work`. Adds the tensor's name to an Error that leaves it, unless that is a stop request.
template <class Work> void about_wanted(const LazyTensor& tensor, Work&& work) {
    const auto add = [&](Error& error) {
        if (error.code() != Errc::cancelled) error.with_tensor(tensor.name());
    };
    adding(add, std::forward<Work>(work));
}

}  // namespace

void Gatherer::begin(const GatherRoom& room) { impl_->begin(room); }

void Gatherer::add(const LazyTensor& tensor, Dtype dtype, std::uint64_t offset, std::span<std::byte> out,
                   CastCounts* counts) {
    about_wanted(tensor, [&] {
        require_range(tensor, dtype, {offset, out.size()});
        impl_->want(tensor, dtype, counts);
        if (out.empty()) return;
        const unsigned width = bits(dtype);
        const std::uint64_t unit = tensor.stored()->unit_size();
        const bool as_stored = dtype == tensor.stored()->dtype() && tensor.decoding() == Decoding{};
        const StridedView view = tensor.strided_view();
        if (as_stored && offset % unit == 0 && out.size() % unit == 0 && is_contiguous(view.shape, view.strides))
            return impl_->add_contiguous(static_cast<std::uint64_t>(view.offset) * width / 8 + offset, out);

        if (offset * 8 % width != 0 || out.size() * 8 % width != 0)
            throw Error(Errc::invalid_argument, "the range of bytes cuts an element of " + std::string(name(dtype)));
        add_elements(whole_bytes(dtype) ? tensor : with_whole_rows(tensor), width, offset * 8 / width, out);
    });
}

void Gatherer::add_elements(const LazyTensor& view, unsigned width, std::uint64_t first, std::span<std::byte> out) {
    each_box_of_range(view.shape(), first, out.size() * 8 / width, [&](const Box& box, std::uint64_t count) {
        const auto size = static_cast<std::size_t>(count * width / 8);
        impl_->add(view, box, out.first(size));
        out = out.subspan(size);
    });
}

void Gatherer::flush() { impl_->finish(); }

void Gatherer::fill(const LazyTensor& tensor, const Box& box, std::span<std::byte> out, const GatherRoom& room) {
    begin(room);
    about_tensor(tensor.name(), [&] {
        require_inside(tensor, box, out.size());
        impl_->want(tensor, tensor.dtype(), nullptr);
        impl_->add(tensor, box, out);
    });
    flush();
}

void Gatherer::fill(const LazyTensor& tensor, std::uint64_t offset, std::span<std::byte> out) {
    begin();
    add(tensor, tensor.dtype(), offset, out);
    flush();
}

CastCounts Gatherer::take_counts() noexcept { return impl_->take_counts(); }

}  // namespace safemap::SAFEMAP_ABI
