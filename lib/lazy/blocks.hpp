// Cuts a tensor into boxes that are read well: long row-major ranges where the source stands that way, tiles for
// transposes.
#pragma once

#include "lazy/gatherer.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI {

/// Blocks that cover a tensor's value, each element once. Takes no memory for them.
class Blocks {
public:
    /// `max_bytes` (at least 64) of value in one block at most.
    Blocks(const LazyTensor& tensor, std::uint64_t max_bytes);
    /// Ranges however the source stands, for who needs the bytes in order; of whole rows where it stands transposed and
    /// a row is no longer than `max_bytes`.
    static Blocks in_order(const LazyTensor& tensor, std::uint64_t max_bytes);
    /// Whether a tensor is in boxes with short rows, so that for_disk() cuts it into ranges of whole rows, and the
    /// larger the shorter these are.
    static bool wants_rows(const LazyTensor& tensor);
    /// in_order() where each range is made of stretches of the source that are long enough for the disk to be written
    /// in ranges; whole rows, if one is no longer than `max_bytes`, where wants_rows(); else as the constructor cuts.
    static Blocks for_disk(const LazyTensor& tensor, std::uint64_t max_bytes);

    std::uint64_t count() const noexcept { return count_; }
    /// Whether blocks are ranges of the row-major value, not boxes: always, except where the source stands transposed.
    bool ranges() const noexcept { return ranges_; }
    /// The i-th range, in bytes of the value; they follow each other. Only where ranges().
    Extent range(std::uint64_t i) const noexcept;
    /// The i-th box, in row-major order of their corners. Only where not ranges().
    Box box(std::uint64_t i) const;

    /// Bytes of the i-th.
    std::uint64_t size(std::uint64_t i) const;
    /// Fills the beginning of `buffer` with the i-th of a tensor that is cut like this; returns what it has filled.
    std::span<std::byte> gather(std::uint64_t i, const LazyTensor& tensor, Gatherer& gatherer,
                                std::span<std::byte> buffer) const;
    /// Says where the bytes of the i-th go: calls put as for_each_range does.
    template <class Put> void scatter(std::uint64_t i, Put&& put) const;

private:
    Blocks(std::uint64_t total_bytes, std::uint64_t max_bytes) noexcept;
    /// Ranges of `range_bytes`; 0: as large as may be.
    static Blocks of_ranges(const LazyTensor& tensor, std::uint64_t max_bytes, std::uint64_t range_bytes);
    static Blocks of_rows(const LazyTensor& tensor, std::uint64_t max_bytes);
    bool ranges_ = true;
    std::uint64_t count_ = 0;
    unsigned element_bits_ = 8;
    std::uint64_t range_bytes_ = 0;
    std::uint64_t total_bytes_ = 0;
    Shape shape_;
    Shape step_;  // extent of a box
    Shape grid_;  // boxes along each dimension
};

/// The row-major ranges of a value that a box is made of: calls range(value_offset, box_offset, size), in bytes, in
/// rising order; neighbours are merged.
template <class Range> void for_each_range(const Shape& shape, unsigned element_bits, const Box& box, Range&& range);

}  // namespace safemap::SAFEMAP_ABI

#include "lazy/blocks_ranges.hpp"
