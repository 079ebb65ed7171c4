// The jobs that fill a range of device memory with its tensors.
#include "device/fill_plan.hpp"

#include "drivers/huge_pages.hpp"
#include "lazy/stored_tensor.hpp"

#include <algorithm>
#include <cstring>

namespace safemap::SAFEMAP_ABI::device {
namespace {

// A tensor of this size is gathered whole, however it is stored: what it is gathered from stays in the CPU cache.
constexpr std::uint64_t small_tensor = 256_KiB;

/// Gathers the parts of all tensors that are in `range`, each to its place: `place_of` is as in FillPlan::PlaceOf.
template <class PlaceOf>
void gather(const Layout& layout, Extent range, std::size_t first, Paths& paths, Worker& worker,
            const PlaceOf& place_of) {
    PathReader reader(paths, worker);
    Gatherer& gatherer = worker.gatherer;
    gatherer.begin({.reader = &reader});
    for (std::size_t i = first; i < layout.tensors.size() && layout.places[i] < range.end(); ++i) {
        const LazyTensor& tensor = layout.tensors[i];
        const Extent own = layout.extent(i);
        const std::uint64_t begin = std::max(own.offset, range.offset);
        const std::uint64_t end = std::min(own.end(), range.end());
        if (begin >= end) continue;
        const std::uint64_t at = begin - own.offset;
        gatherer.add(tensor, tensor.dtype(), at, {place_of(i, at), end - begin});
    }
    gatherer.flush();
}

/// Gathers a tile into `buffer`, and returns the part that it takes.
std::span<std::byte> gather_tile(const Blocks& tiles, std::uint64_t block, const LazyTensor& tensor, Paths& paths,
                                 Worker& worker, std::span<std::byte> buffer) {
    PathReader reader(paths, worker);
    return tiles.gather(block, tensor, worker.gatherer, buffer, {.reader = &reader});
}

/// Returns the end of the part of `range` that is gathered at once: of what lies in one huge page, but with whole
/// elements, and with the whole of a tensor that cannot be cut. `at` and `tensor` are its first byte and that byte's
/// tensor, and `address` is its place.
std::uint64_t end_of_part(const Layout& layout, Extent range, std::uint64_t at, std::size_t tensor,
                          const std::byte* address) {
    const std::uint64_t rest = drivers::huge_page - reinterpret_cast<std::uintptr_t>(address) % drivers::huge_page;
    // Tensors begin at such places in the layout, so this one is between two elements, wherever the tensor itself lies.
    // It may be up to 255 bytes beyond the border of the huge page.
    const std::uint64_t end = (at + rest + place_alignment - 1) / place_alignment * place_alignment;
    if (end >= range.end()) return range.end();
    while (layout.extent(tensor).end() <= end) ++tensor;
    const bool cuts = layout.places[tensor] < end && !layout.tensors[tensor].placement();
    return cuts ? std::min(layout.extent(tensor).end(), range.end()) : end;
}

/// Gathers a range to its places, one huge page after the other where places are in order. The first byte of each part
/// is written before the part is read. If a read() were the first to touch a huge page, the kernel would hold the lock
/// of the whole address space while it clears the page, and an allocation of another thread would wait for that. If all
/// were touched first, they would have left the CPU cache.
void gather_in_place(const Layout& layout, Extent range, std::size_t tensor, Paths& paths, Worker& worker,
                     const FillPlan::PlaceOf& place_of) {
    for (std::uint64_t at = range.offset; at < range.end();) {
        while (layout.extent(tensor).end() <= at) ++tensor;
        at = std::max(at, layout.places[tensor]);
        if (at >= range.end()) return;  // a range may end in padding
        std::byte* const address = place_of(tensor, at - layout.places[tensor]);
        const std::uint64_t end = end_of_part(layout, range, at, tensor, address);
        *const_cast<volatile std::byte*>(address) = std::byte{0};
        gather(layout, {at, end - at}, tensor, paths, worker, place_of);
        at = end;
    }
}

/// Joins ranges of equal size and distance into rows.
class RowJoiner {
public:
    explicit RowJoiner(const FillPlan::Copies& copies) : copies_(copies) {}

    void add(std::uint64_t to, std::uint64_t from, std::uint64_t size) {
        if (rows_.rows > 0 && size == rows_.row_bytes) {
            const std::uint64_t to_pitch = to - last_to_;
            const std::uint64_t from_pitch = from - last_from_;
            if (rows_.rows == 1) {
                rows_.to_pitch = to_pitch;
                rows_.from_pitch = from_pitch;
            }
            if (to_pitch == rows_.to_pitch && from_pitch == rows_.from_pitch) {
                ++rows_.rows;
                last_to_ = to;
                last_from_ = from;
                return;
            }
        }
        flush();
        rows_ = {.to = to, .to_pitch = size, .from = from, .from_pitch = size, .row_bytes = size, .rows = 1};
        last_to_ = to;
        last_from_ = from;
    }

    void flush() {
        if (rows_.rows == 1) copies_.range(rows_.to, {rows_.from, rows_.row_bytes});
        else if (rows_.rows > 1) copies_.rows(rows_);
        rows_.rows = 0;
    }

private:
    const FillPlan::Copies& copies_;
    RowCopy rows_ = {};
    std::uint64_t last_to_ = 0;
    std::uint64_t last_from_ = 0;
};

}  // namespace

FillPlan::FillPlan(const Layout& layout, std::uint64_t most_bytes, std::uint64_t tile_bytes) {
    most_bytes = most_bytes / place_alignment * place_alignment;
    Extent run;             // tensors that are filled together
    std::size_t first = 0;  // the first of them
    const auto end_run = [&] {
        if (run.size > 0) add_range(run, first);
        run.size = 0;
    };
    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
        const Extent own = layout.extent(i);
        if (own.size == 0) continue;
        const bool simple = layout.tensors[i].placement().has_value();
        if (!simple && own.size > std::min(small_tensor, most_bytes)) {
            end_run();
            add_blocks(layout, i, most_bytes, tile_bytes);
            continue;
        }
        if (run.size == 0 || (!simple && own.end() - run.offset > most_bytes)) {
            end_run();
            run.offset = own.offset;
            first = i;
        }
        // Only a simple tensor is cut: its bytes can be read from any offset.
        while (own.end() - run.offset > most_bytes) {
            add_range({run.offset, most_bytes}, first);
            run.offset += most_bytes;
            first = i;
        }
        run.size = own.end() - run.offset;
    }
    end_run();
}

void FillPlan::add_range(Extent range, std::size_t first) {
    jobs_.push_back({range, static_cast<std::uint32_t>(first), none, 0});
}

void FillPlan::add_blocks(const Layout& layout, std::size_t tensor, std::uint64_t most_bytes,
                          std::uint64_t tile_bytes) {
    const LazyTensor& lazy = layout.tensors[tensor];
    Blocks blocks = Blocks::wants_rows(lazy) ? Blocks::for_disk(lazy, most_bytes) : Blocks(lazy, most_bytes);
    if (!blocks.ranges()) blocks = Blocks(lazy, std::min(tile_bytes, most_bytes));
    for (std::uint64_t block = 0; block < blocks.count(); ++block) {
        const Extent range = blocks.ranges() ? blocks.range(block) : Extent{0, blocks.size(block)};
        jobs_.push_back({{layout.places[tensor] + range.offset, range.size},
                         static_cast<std::uint32_t>(tensor),
                         static_cast<std::uint32_t>(blocks_.size()),
                         block});
    }
    blocks_.push_back(std::move(blocks));
}

std::vector<Extent> FillPlan::tiled(const Layout& layout) const {
    std::vector<Extent> all;
    for (const Job& job : jobs_)
        if (is_tile(job) && job.block == 0) all.push_back(layout.extent(job.tensor));
    return all;
}

void FillPlan::fill(const Layout& layout, std::size_t i, Paths& paths, Worker& worker, const PlaceOf& place_of) const {
    const Job& job = jobs_[i];
    if (!is_tile(job)) return gather_in_place(layout, job.range, job.tensor, paths, worker, place_of);
    std::byte* const to = place_of(job.tensor, 0);
    const Blocks& tiles = blocks_[job.blocks];
    const auto tile =
        gather_tile(tiles, job.block, layout.tensors[job.tensor], paths, worker, worker.buffer(job.range.size));
    tiles.scatter(job.block, [&](std::uint64_t at, std::uint64_t from, std::uint64_t size) {
        std::memcpy(to + at, tile.data() + from, size);
    });
}

void FillPlan::fill(const Layout& layout, std::size_t i, Paths& paths, Worker& worker, std::span<std::byte> slab,
                    const Copies& copies) const {
    const Job& job = jobs_[i];
    if (!is_tile(job)) {
        const auto picture = slab.first(job.range.size);
        gather(layout, job.range, job.tensor, paths, worker, [&](std::size_t t, std::uint64_t at) {
            return picture.data() + (layout.places[t] + at - job.range.offset);
        });
        clear_padding(layout, job.range, job.tensor, picture);
        copies.range(job.range.offset, {0, job.range.size});
        return;
    }
    const Blocks& tiles = blocks_[job.blocks];
    gather_tile(tiles, job.block, layout.tensors[job.tensor], paths, worker, slab);
    RowJoiner rows(copies);
    tiles.scatter(job.block, [&](std::uint64_t at, std::uint64_t from, std::uint64_t size) {
        rows.add(layout.places[job.tensor] + at, from, size);
    });
    rows.flush();
}

}  // namespace safemap::SAFEMAP_ABI::device
