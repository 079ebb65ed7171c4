// The base of a LazyTensor: a dtype, a shape, and the pieces of sources that hold the elements. Use it to write a
// reader for a format that safemap does not have.
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

/// Elements [first, first + count) of the row-major tensor, contiguous from byte `offset` of `source`. Keeps the source
/// open.
struct RunPiece {
    std::shared_ptr<const Source> source = {};
    std::uint64_t offset = 0;  ///< byte offset in the source
    std::uint64_t first = 0;   ///< row-major number of the first element
    std::uint64_t count = 0;   ///< elements
};

/// A numbered list of sources, which it keeps open. Tensors with pieces in the same files share one table, so that a
/// piece holds a number and no tensor searches a list. Immutable; may be used from several threads at once.
///
/// Example:
///     safemap::SourceTable table({safemap::open_file("a.bin"), safemap::open_file("b.bin")});
///     std::size_t count = table.size();            // 2
///     const std::string& name = table[0]->name();  // "a.bin"
class SAFEMAP_API SourceTable {
public:
    /// Makes a table. Throws invalid_argument if a source is null, and for 2^32 sources or more.
    explicit SourceTable(std::vector<std::shared_ptr<const Source>> sources);

    /// Returns the number of sources.
    std::size_t size() const noexcept { return sources_.size(); }
    /// Returns the source with this number, which must be below size(). Valid while the table lives.
    const std::shared_ptr<const Source>& operator[](std::size_t number) const noexcept { return sources_[number]; }

private:
    std::vector<std::shared_ptr<const Source>> sources_;
};

/// A RunPiece whose source is a number in a SourceTable.
struct IndexedRun {
    std::uint64_t offset = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint32_t source = 0;
};

/// A region of the tensor that is stored strided in a source. Keeps the source open.
struct BoxPiece {
    std::shared_ptr<const Source> source = {};
    std::uint64_t offset = 0;  ///< byte offset of the region's first element in the source
    Box place = {};            ///< the region of the tensor
    Strides strides = {};      ///< in the source, in elements
};

/// A BoxPiece whose source is a number in a SourceTable.
struct IndexedBox {
    std::uint64_t offset = 0;
    Box place = {};
    Strides strides = {};
    std::uint32_t source = 0;
};

/// A dtype, a shape, and the pieces that hold every element exactly once. Owns the pieces and keeps their sources open.
/// Immutable and shared; LazyTensor is the only way to read it.
///
/// Example:
///     auto source = safemap::open_file("weights.bin");
///     auto stored = safemap::stored_run(safemap::Dtype::f32, {2, 3}, source, 0);  // 24 bytes from offset 0
///     safemap::TensorView value = safemap::LazyTensor("w", stored).load();
class StoredTensor;

/// Returns a tensor whose pieces are all runs, in any order. Reads nothing. Throws bad_tensor if the runs leave out an
/// element or hold one twice, shape_overflow, partial_byte, storage_too_short if a run ends outside its source, and
/// invalid_argument if a run has no source.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape,
                                                                          std::span<const RunPiece> runs);
/// Returns a tensor whose pieces are runs in the sources of `table`, and keeps the table. Linear if the runs are in
/// ascending order; uses 24 bytes of memory per run. Throws as above, and invalid_argument if `table` is null or lacks
/// a number.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const StoredTensor> stored_runs(Dtype dtype, Shape shape,
                                                                          std::shared_ptr<const SourceTable> table,
                                                                          std::span<const IndexedRun> runs);
/// Returns a tensor that is one run: contiguous, row-major, from byte `offset` of `source`. This is the most common
/// case. Throws as stored_runs() does.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const StoredTensor> stored_run(Dtype dtype, Shape shape,
                                                                         std::shared_ptr<const Source> source,
                                                                         std::uint64_t offset);
/// Returns a tensor whose pieces are all boxes, in any order. The dtype must have elements of whole bytes. Throws as
/// stored_runs() does. Takes O(n log n) for n boxes that form a grid, and little more for others. The cost of a read
/// depends on the number of boxes that it touches, not on the number of all boxes; their rows are copied one by one.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const StoredTensor> stored_boxes(Dtype dtype, Shape shape,
                                                                           std::span<const BoxPiece> boxes);
/// Returns a tensor whose pieces are boxes in the sources of `table`, and keeps the table. Throws as above, and
/// invalid_argument if `table` is null or lacks a number.
[[nodiscard]] SAFEMAP_API std::shared_ptr<const StoredTensor> stored_boxes(Dtype dtype, Shape shape,
                                                                           std::shared_ptr<const SourceTable> table,
                                                                           std::span<const IndexedBox> boxes);

/// The steps that turn stored elements into values, applied in the order of the fields. PyTorch's big-endian files and
/// its lazy conjugate and negative bits need them.
struct Decoding {
    bool byte_swap = false;  ///< the elements are stored big-endian
    bool conj = false;       ///< the value is the conjugate of what is stored
    bool neg = false;        ///< the value is the negative of what is stored

    friend bool operator==(const Decoding&, const Decoding&) = default;
};

/// Returns true if LazyTensor::cast(to) is supported for a value of dtype `from`.
[[nodiscard]] SAFEMAP_API bool can_cast(Dtype from, Dtype to) noexcept;

}  // namespace safemap::SAFEMAP_ABI
