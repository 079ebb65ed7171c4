// Copies values to their places in an output file.
#pragma once

#include "io/output.hpp"
#include "lazy/bulk.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The part of a tensor that one write covers: a box of a row-major value of `shape`, which begins at byte `offset` of
/// the tensor.
struct Region {
    Shape shape = {};
    Box box = {};
    unsigned element_bits = 8;
    std::uint64_t offset = 0;
};

/// Returns the region of bytes [offset, offset + size) of a tensor.
Region byte_range(std::uint64_t offset, std::uint64_t size);
/// Returns the region of a whole value of `shape` that begins at byte `offset` of the tensor.
Region whole_value(const Shape& shape, Dtype dtype, std::uint64_t offset = 0);

/// Returns the byte ranges of the tensor that a region covers. They are in rising order, which is also the row-major
/// order of the region. None is empty.
std::vector<Extent> pieces_of(const Region& region);

/// The place of a region in an output file.
struct OutputPlace {
    const io::OutputFile& file;
    std::uint64_t tensor = 0;  ///< offset of the tensor in the file
    const Region& region;
    std::span<const Extent> pieces;  ///< pieces_of(region)
};

/// Writes the region's bytes straight from contiguous memory.
void copy_memory(const OutputPlace& to, std::span<const std::byte> bytes);
/// Bytes that copy_value takes of the worker's buffer.
inline constexpr std::size_t copy_buffer = (std::size_t{4} << 20) - Gatherer::most_memory;
/// Writes a value through the worker's buffer. The value has the bytes of the region. If the value is transposed, it is
/// read in tiles; then its shape has to be the extent of the region's box.
void copy_value(const OutputPlace& to, const LazyTensor& value, Worker& worker);

}  // namespace safemap::SAFEMAP_ABI::write
