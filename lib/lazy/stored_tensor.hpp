// The stored form of a tensor, kept compact: 64 bytes for a tensor of one run whose shape others have too, 24 for each
// of several runs, 64 for a box of two dimensions, and up to 32 more per box if the boxes do not form a grid.
#pragma once

#include "lazy/grid.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/lazy_tensor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tensor as pieces of sources. Pieces count *units*: elements, or bytes for a sub-byte dtype, whose pieces are runs
/// of whole bytes.
class StoredTensor {
public:
    /// Checks, sorts and copies the pieces. Throws as documented at stored_runs() and stored_boxes().
    StoredTensor(Dtype dtype, Shape shape, std::shared_ptr<const SourceTable> table, std::span<const IndexedRun> runs);
    StoredTensor(Dtype dtype, Shape shape, std::shared_ptr<const SourceTable> table, std::span<const IndexedBox> boxes);
    /// Makes a tensor of one run.
    StoredTensor(Dtype dtype, std::shared_ptr<const Shape> shape, std::shared_ptr<const Source> source,
                 std::uint64_t offset);

    Dtype dtype() const noexcept { return dtype_; }
    const Shape& shape() const noexcept { return *shape_; }
    std::uint64_t element_count() const noexcept { return elements_; }
    /// Returns the bytes of a unit.
    unsigned unit_size() const noexcept { return whole_bytes(dtype_) ? element_size(dtype_) : 1; }
    std::size_t piece_count() const noexcept;

    /// The place of a unit in its source, and how many units of the base follow it at equal distances.
    struct Place {
        std::uint32_t source;
        std::uint64_t offset;  // bytes
        std::uint64_t count;   // at least 1: the unit itself
        std::int64_t stride;   // in units
    };
    Place locate(std::uint64_t unit) const noexcept;
    /// A box of the base. A run is given as a box of one dimension of the flattened base, in units.
    struct Piece {
        std::uint32_t source;
        std::uint64_t offset;        // bytes; place of its first element
        const std::uint64_t* start;  // in the base; one number per dimension, as below
        const std::uint64_t* extent;
        const std::int64_t* strides;  // in the source, in elements
    };
    /// Returns the mean number of elements that are consecutive in the base inside one box. Requires in_boxes().
    std::uint64_t mean_row() const noexcept { return elements_ / pieces_->rows; }
    bool in_boxes() const noexcept { return pieces_ && !pieces_->boxes.empty(); }
    /// Calls visit(piece, number of its dimensions) for every piece, in the order of their starts.
    template <class Visit> void each_piece(Visit&& visit) const {
        if (in_boxes())
            for (std::size_t box = 0; box < pieces_->boxes.size(); ++box) visit(pieces_->piece(box), shape().size());
        else each_run(visit);
    }
    /// Calls visit(piece) for each box that overlaps `region`, which is inside the base and not empty. Requires
    /// in_boxes().
    template <class Visit> void each_piece_in(const Box& region, Visit&& visit) const {
        pieces_->grid.each_in(region, [&](std::size_t box) { visit(pieces_->piece(box)); });
    }

    /// Returns true if the whole tensor is one run: row-major from locate(0) on.
    bool in_one_run() const noexcept { return pieces_ == nullptr && elements_ > 0; }

    const Source& source(std::uint32_t i) const noexcept { return *shared_source(i); }
    const std::shared_ptr<const Source>& shared_source(std::uint32_t i) const noexcept {
        return pieces_ ? (*pieces_->table)[i] : only_source_;
    }
    /// Calls visit(source) for every source that holds elements, in the order of the pieces. Consecutive pieces in one
    /// source cause one call; a source may be visited again after another one. Skips sources of the table that hold no
    /// elements of this tensor.
    template <class Visit> void each_source(Visit&& visit) const {
        if (elements_ == 0) return;
        if (!pieces_) return static_cast<void>(visit(*only_source_));
        pieces_->each_source(visit);
    }

private:
    /// A run. It ends where the next run begins, or at the end of the base.
    struct Run {
        std::uint64_t offset;  // bytes; place of its first unit in the source
        std::uint64_t first;   // its first unit in the base
        std::uint32_t source;
    };
    struct BoxHead {
        std::uint64_t offset;
        std::uint32_t source;
    };

    /// The pieces of a tensor that is not one run.
    struct Pieces {
        std::size_t rank = 0;
        std::shared_ptr<const SourceTable> table = {};
        std::vector<Run> runs = {};              // sorted by first
        std::uint64_t rows = 0;                  // total over all boxes
        std::vector<BoxHead> boxes = {};         // sorted by start
        std::vector<std::int64_t> strides = {};  // strides of each box
        Grid grid = {};                          // place of each box in the base

        template <class Visit> void each_source(Visit& visit) const {
            std::uint32_t last = UINT32_MAX;  // not the index of a source
            const auto once = [&](const auto& piece) {
                if (piece.source != last) visit(*(*table)[last = piece.source]);
            };
            for (const Run& run : runs) once(run);
            for (const BoxHead& box : boxes) once(box);
        }
        Piece piece(std::size_t box) const noexcept {
            return {boxes[box].source, boxes[box].offset, grid.start(box), grid.extent(box),
                    strides.data() + box * rank};
        }
    };

    template <class Visit> void each_run(Visit& visit) const {
        constexpr std::int64_t stride = 1;
        for (std::uint64_t first = 0; first < units();) {
            const Place place = locate(first);
            visit(Piece{place.source, place.offset, &first, &place.count, &stride}, std::size_t{1});
            first += place.count;
        }
    }

    void count_elements();
    std::uint64_t units() const noexcept { return whole_bytes(dtype_) ? elements_ : *byte_size(dtype_, elements_); }
    void check_bytes(const Source& source, std::uint64_t offset, std::uint64_t size) const;
    void check_run(const IndexedRun& run) const;
    void keep_runs(std::span<const IndexedRun> runs);
    void check_box(const IndexedBox& box) const;
    Place locate_in_boxes(std::uint64_t element) const noexcept;

    Dtype dtype_;
    std::shared_ptr<const Shape> shape_;  // shared, because few shapes are those of most tensors
    std::uint64_t elements_ = 0;
    // The single run, as almost every tensor has; otherwise pieces_.
    std::shared_ptr<const Source> only_source_;
    std::uint64_t only_offset_ = 0;
    std::unique_ptr<Pieces> pieces_;
};

/// The maker of many tensors of one run. It allocates tensors of one source together, so that each takes 64 bytes. They
/// share equal shapes. The memory of 64 tensors is freed when no one uses any of them.
class StoredRuns {
public:
    /// Does what stored_run() does.
    std::shared_ptr<const StoredTensor> add(Dtype dtype, const Shape& shape, std::shared_ptr<const Source> source,
                                            std::uint64_t offset);

private:
    static constexpr std::size_t at_once = 64;

    const std::shared_ptr<const Shape>& shared(const Shape& shape);

    std::shared_ptr<const Source> last_source_;
    std::shared_ptr<std::vector<StoredTensor>> tensors_;   // the newest of that source
    std::array<std::shared_ptr<const Shape>, 64> shapes_;  // a later shape replaces an earlier one in its place
};

/// Returns true if the box has the rank of `shape` and is inside it.
bool is_inside(const Box& box, const Shape& shape) noexcept;

}  // namespace safemap::SAFEMAP_ABI
