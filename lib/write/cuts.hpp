// How a file is cut for the copy engine: into streams of tensors side by side, tensors that stand apart, and strips of
// one storage. And how the units of all files are divided over processes: each gets a range of all bytes.
#pragma once

#include "lazy/blocks.hpp"
#include "lazy/bulk.hpp"
#include "write/file_layout.hpp"

#include <safemap/api.hpp>
#include <safemap/bytes.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

using namespace literals;

/// Blocks of a stream, where the tensors are stored in long runs. Two workers reach the full speed of the machine, and
/// blocks closer together are written faster. Past the page cache, 3.8 GB took 2.0 to 3.7 s in blocks of 1 MiB, and 2.1
/// to 4.5 s in blocks of 8 MiB. Through the page cache, it took 2.1 to 17 s in blocks of 1 MiB, and 6 to 17 s in blocks
/// of 8 MiB.
inline constexpr std::uint64_t stream_block = 1_MiB;
/// Largest block. A transposed tensor is gathered in tiles, and a tensor in boxes in rows; larger blocks are faster for
/// both. Where the tensors of a stream are stored in short runs, runs of different tensors are neighbours in the
/// sources; the more of them are gathered together, the fewer reads they take.
inline constexpr std::uint64_t largest_block = 8_MiB;
/// Largest buffer of a worker: a block and the stored elements of the values that are cast. 4 MiB of BF16 and the 8 MiB
/// of F32 that they are cast from fit, at any offset in a page.
inline constexpr std::uint64_t largest_buffer = 12_MiB + Worker::page;

/// A stretch of one file that is cut into units in one way.
struct Cut {
    enum class Kind : std::uint8_t {
        stream,  ///< tensors side by side, cut wherever the file's offset is a multiple of `block`
        blocks,  ///< one tensor, cut as Blocks says
        strips,  ///< tensors whose elements alternate in one storage, cut as Strips says
    };
    Extent bytes = {};
    std::uint32_t first = 0;    ///< first of its tensors, counted in the file
    std::uint32_t count = 0;    ///< the first and the last may reach beyond a stream
    std::uint64_t block = 0;    ///< size of a block of a stream
    std::uint64_t scratch = 0;  ///< bytes of the buffer for the stored elements of values that are cast
    Kind kind = Kind::stream;

    /// Returns the number of units of a stream.
    std::uint64_t units() const noexcept { return (bytes.end() - 1) / block - bytes.offset / block + 1; }
    /// Returns the bytes of the file that are a unit of a stream.
    Extent unit(std::uint64_t number) const noexcept;
};

/// Returns the stretches of a file in the order of its bytes, none of them empty. `buffer` is the size of a worker's
/// buffer.
std::vector<Cut> cuts_of(std::span<const LazyTensor> tensors, const PlannedFile& file, std::uint64_t buffer);

/// Returns the end of a tensor of a file, counted in the file.
inline std::uint64_t end_of(const PlannedFile& file, std::size_t tensor) noexcept {
    return tensor + 1 < file.tensors.size() ? file.tensors[tensor + 1].offset : file.size;
}

/// Units of one file that follow each other: the first has `lead` bytes, the others `block`, except the last.
struct UnitRun {
    std::uint32_t file = 0;
    std::uint64_t bytes = 0;
    std::uint64_t units = 0;
    std::uint64_t lead = 0;
    std::uint64_t block = 0;
};

/// The units [first, last), counted over all runs.
struct Share {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
};

/// Returns the first unit of a rank; for rank `ranks`, the number of all units. Ranks get about the same number of
/// bytes. A boundary near the end of a file is moved there, so that fewer files are written by two processes.
std::uint64_t first_unit_of(std::span<const UnitRun> runs, unsigned rank, unsigned ranks);
inline Share share_of(std::span<const UnitRun> runs, unsigned rank, unsigned ranks) {
    return {first_unit_of(runs, rank, ranks), first_unit_of(runs, rank + 1, ranks)};
}

}  // namespace safemap::SAFEMAP_ABI::write
