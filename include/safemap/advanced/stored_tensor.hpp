// What a LazyTensor looks at: a dtype, a shape, and the pieces of sources that hold the elements. For those who write a
// reader of their own.
#pragma once

#include <safemap/advanced/strides.hpp>
#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Elements [first, first + count) of the flattened base value, one after the other from byte `offset` of
/// `source` on.
struct RunPiece {
    std::shared_ptr<const Source> source = {};
    std::uint64_t offset = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

/// Sources by number. Tensors whose pieces stand in the same files share one table, so that a piece holds a number and
/// no tensor searches a list. Immutable; may be used from several threads at once.
class SAFEMAP_API SourceTable {
public:
    /// Throws invalid_argument where a source is null, and for 2^32 sources.
    explicit SourceTable(std::vector<std::shared_ptr<const Source>> sources);

    std::size_t size() const noexcept { return sources_.size(); }
    const std::shared_ptr<const Source>& operator[](std::size_t number) const noexcept { return sources_[number]; }

private:
    std::vector<std::shared_ptr<const Source>> sources_;
};

/// A RunPiece whose source is a number of a SourceTable.
struct IndexedRun {
    std::uint64_t offset = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint32_t source = 0;
};

/// The region `place` of the base value. Its first element stands at byte `offset` of `source`; `strides` are
/// the distances in the source, in elements.
struct BoxPiece {
    std::shared_ptr<const Source> source = {};
    std::uint64_t offset = 0;
    Box place = {};
    Strides strides = {};
};

/// What is stored: a dtype, a shape, and the pieces that hold every element exactly once. Immutable and shared.
class StoredTensor;

/// Pieces that are all runs, in any order. Throws bad_tensor where they leave elements out or hold one twice,
/// shape_overflow, partial_byte, storage_too_short where one reaches past its source, and invalid_argument where one
/// has none.
SAFEMAP_API std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape, std::span<const RunPiece> runs);
/// The same for pieces in the sources of `table`, which is kept. Takes linear time where the runs are in rising order,
/// and keeps 24 bytes a run. Throws likewise; invalid_argument also where `table` is null or has no such number.
SAFEMAP_API std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape,
                                                            std::shared_ptr<const SourceTable> table,
                                                            std::span<const IndexedRun> runs);
/// The commonest case: everything in one run from `offset` on. Throws likewise.
SAFEMAP_API std::shared_ptr<const StoredTensor> stored_run(Dtype dtype, Shape shape,
                                                           std::shared_ptr<const Source> source, std::uint64_t offset);
/// Pieces that are all boxes, in any order, of a dtype of whole bytes. Throws as stored_runs does. Takes O(n log n) for
/// n boxes that are a grid, and little more for others. A read takes as long as it meets boxes, not as there are; their
/// rows are copied one by one.
SAFEMAP_API std::shared_ptr<const StoredTensor> stored_boxes(Dtype dtype, Shape shape, std::span<const BoxPiece> boxes);

/// How stored elements become values: what PyTorch's big-endian files and lazy bits ask for, applied in this order.
struct Decoding {
    bool byte_swap = false;  ///< elements are stored big-endian
    bool conj = false;       ///< complex values are stored unconjugated
    bool neg = false;        ///< values are stored with the other sign

    friend bool operator==(const Decoding&, const Decoding&) = default;
};

/// Whether LazyTensor::cast(to) is possible for a value of `from`.
SAFEMAP_API bool can_cast(Dtype from, Dtype to) noexcept;

}  // namespace safemap::SAFEMAP_ABI
