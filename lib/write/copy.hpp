// From a value to the places in a file where its bytes belong.
#pragma once

#include "io/output.hpp"
#include "lazy/bulk.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// What is written of a tensor: the box of a row-major value of `shape` that begins at byte `offset` of the tensor.
struct Region {
    Shape shape = {};
    Box box = {};
    unsigned element_bits = 8;
    std::uint64_t offset = 0;
};

/// Bytes [offset, offset + size) of a tensor.
Region byte_range(std::uint64_t offset, std::uint64_t size);
/// A whole value of `shape`, from byte `offset` of the tensor on.
Region whole_value(const Shape& shape, Dtype dtype, std::uint64_t offset = 0);

/// The ranges of the tensor's bytes that a region is made of, in rising order, which is that of its own row-major
/// bytes. None is empty.
std::vector<Extent> pieces_of(const Region& region);

/// Where a region goes in an output file.
struct Place {
    const io::OutputFile& file;
    std::uint64_t tensor = 0;  ///< where the tensor begins in the file
    const Region& region;
    std::span<const Extent> pieces;  ///< of the region
};

/// Writes the region's bytes, which lie in a row in memory, from where they are.
void copy_memory(const Place& to, std::span<const std::byte> bytes);
/// Bytes of the worker's buffer that copy_value takes.
inline constexpr std::size_t copy_buffer = (std::size_t{4} << 20) - Gatherer::most_memory;
/// Writes a value through the worker's buffer. Its bytes are those of the region, and where the value stands
/// transposed, so that tiles of it are read, its shape is the extent of the region's box.
void copy_value(const Place& to, const LazyTensor& value, Worker& worker);

}  // namespace safemap::SAFEMAP_ABI::write
