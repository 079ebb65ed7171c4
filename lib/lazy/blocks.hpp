// Cuts a tensor into blocks for fast reading: long row-major ranges if the source is row-major too, tiles if it is
// transposed.
#pragma once

#include "lazy/gatherer.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// The blocks of a tensor's value. They cover each element once. No memory is allocated per block.
class Blocks {
public:
    /// Cuts `tensor` into blocks of at most `max_bytes` of value. `max_bytes` is at least 64.
    Blocks(const LazyTensor& tensor, std::uint64_t max_bytes);
    /// Cuts into ranges, even if the source is transposed: for callers that need the bytes in order. If the source is
    /// transposed and a row has at most `max_bytes`, the ranges are whole rows.
    static Blocks in_order(const LazyTensor& tensor, std::uint64_t max_bytes);
    /// Returns true if the tensor is stored in boxes with short rows. Then for_disk() cuts it into ranges of whole
    /// rows; the shorter the rows of the boxes, the larger the ranges.
    static bool wants_rows(const LazyTensor& tensor);
    /// Returns the stored bytes of as many rows as should be gathered at once if wants_rows(): of fewer rows, a read of
    /// one box would be short.
    static std::uint64_t rows_at_once(const LazyTensor& tensor);
    /// Cuts for writing to a disk:
    /// 1. whole rows, if wants_rows() and a row has at most `max_bytes`
    /// 2. as in_order(), if each range consists of stretches of the source that are long enough
    /// 3. else as the constructor
    static Blocks for_disk(const LazyTensor& tensor, std::uint64_t max_bytes);

    /// Moves the cuts between ranges, so that they are at multiples of `alignment` in a file that has the value at
    /// `offset`. No range becomes longer. Does nothing if they are shorter than twice the alignment, or no ranges().
    void align(std::uint64_t offset, std::uint64_t alignment) noexcept;

    std::uint64_t count() const noexcept { return count_; }
    /// Returns true if blocks are ranges of the row-major value, false if they are boxes. False only if the source is
    /// transposed.
    bool ranges() const noexcept { return ranges_; }
    /// Returns the i-th range in bytes of the value. The ranges are consecutive. Requires ranges().
    Extent range(std::uint64_t i) const noexcept;
    /// Returns the i-th box, in row-major order of the corners. Requires !ranges().
    Box box(std::uint64_t i) const;

    /// Returns the size of the i-th block in bytes.
    std::uint64_t size(std::uint64_t i) const;
    /// Reads the i-th block of `tensor`, which must be cut like this one, into the beginning of `buffer`. Returns the
    /// filled part.
    std::span<std::byte> gather(std::uint64_t i, const LazyTensor& tensor, Gatherer& gatherer,
                                std::span<std::byte> buffer, const GatherRoom& room = {}) const;
    /// Calls put() for each range of the value in the i-th block, as for_each_range() does.
    template <class Put> void scatter(std::uint64_t i, Put&& put) const;

private:
    Blocks(std::uint64_t total_bytes, std::uint64_t max_bytes) noexcept;
    /// Cuts into ranges of `range_bytes`; 0 means as large as allowed.
    static Blocks of_ranges(const LazyTensor& tensor, std::uint64_t max_bytes, std::uint64_t range_bytes);
    static Blocks of_rows(const LazyTensor& tensor, std::uint64_t max_bytes);
    bool ranges_ = true;
    std::uint64_t count_ = 0;
    unsigned element_bits_ = 8;
    std::uint64_t range_bytes_ = 0;
    std::uint64_t before_ = 0;  // bytes that the first range is shorter than the others
    std::uint64_t total_bytes_ = 0;
    Shape shape_;
    Shape step_;  // extent of a box
    Shape grid_;  // number of boxes along each dimension
};

/// Calls range(value_offset, box_offset, size) for each row-major range of the value that is in the box, in bytes and
/// in rising order. Adjacent ranges are merged.
template <class Range> void for_each_range(const Shape& shape, unsigned element_bits, const Box& box, Range&& range);

}  // namespace safemap::SAFEMAP_ABI

#include "lazy/blocks_ranges.hpp"
