// The copy engine: from any tensors into files that have been laid out.
#pragma once

#include "write/destination.hpp"
#include "write/layout.hpp"

#include <safemap/progress.hpp>

#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Tensors, the files that they go to, and where these are.
struct Written {
    std::span<const LazyTensor> tensors;
    Layout& layout;
    Destination& destination;
};

/// Allocates every file of every layout, then fills them one after the other on the workers that `threads` means
/// (saving_threads), their heads last, and brings each to the disk. The counts of casts in the layouts are filled in,
/// and digests where heads have places for them. Takes at most 32 MiB for buffers, 16 bytes a tensor for digests, and
/// has no more files open than twice the workers, and one. Throws what reading and writing throw, with the tensor and
/// the file, and cancelled.
void write_files(std::span<const Written> parts, const Monitor& monitor, unsigned threads);

/// Of these 32 MiB, what write_files takes for this layout.
std::uint64_t buffer_bytes(std::span<const LazyTensor> tensors, const Layout& layout, unsigned threads);

}  // namespace safemap::SAFEMAP_ABI::write
