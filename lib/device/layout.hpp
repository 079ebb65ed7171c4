// The places of tensors in the memory that they share on a device.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::device {

/// Alignment of the tensors in a layout, in bytes. CUDA's allocators give 256 to every allocation, and kernels expect
/// no more; OpenCL's base alignment on PoCL is 128.
inline constexpr std::uint64_t place_alignment = 256;

/// Tensors in the order in which they are stored, and the place of each in one range of memory. The range ends with the
/// last tensor, without padding.
struct Layout {
    std::vector<LazyTensor> tensors = {};
    std::vector<std::uint64_t> places = {};  // bytes; parallel to tensors
    std::uint64_t size = 0;                  // bytes
    std::uint64_t value_bytes = 0;           // size without padding

    Extent extent(std::size_t i) const noexcept { return {places[i], tensors[i].nbytes()}; }
};

/// Clears the bytes of `range` that belong to no tensor. `picture` has those of the range, and `first` is its first
/// tensor.
void clear_padding(const Layout& layout, Extent range, std::size_t first, std::span<std::byte> picture) noexcept;

/// Places `tensors`, which must be distinct. Sorts them by source, in the order in which the sources appear first, and
/// then by offset. Sets `from[i]` to the number in `tensors` of the i-th tensor of the layout. Throws budget_exceeded
/// if they need more than 2^64 bytes. Takes n log n time, and linear time if they are in that order already.
Layout lay_out(std::vector<LazyTensor> tensors, std::vector<std::uint32_t>& from);

}  // namespace safemap::SAFEMAP_ABI::device
