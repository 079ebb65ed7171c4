// Fills files: one copier for each part of a save, on common workers, in one process or several.
#pragma once

#include "write/shard_copier.hpp"
#include "write/together.hpp"

#include <safemap/progress.hpp>

#include <cstdint>
#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Allocates every file of every layout, then fills the files one after the other and flushes each to disk. Writes the
/// head of a file last. Uses the workers that SaveOptions::work says. Fills in the counts of casts in the
/// layouts, and the digests where headers have places for them. With `drop_cache`, evicts the sources from the page
/// cache as far as they are written. Takes at most 32 MiB for buffers, 16 bytes a tensor for digests, and for
/// `drop_cache` what Evictions takes. Has at most twice as many files open as there are workers, plus one. Throws
/// cancelled, and what reading and writing throw, with the tensor and the file.
///
/// With several processes, every one makes this call, with equal layouts. Each fills its share of the bytes; the leader
/// allocates the files, and completes those that several have filled.
void write_files(std::span<const Written> parts, Together& together, const Monitor& monitor, unsigned threads,
                 bool drop_cache = false);

/// Returns how many bytes of these 32 MiB write_files takes for this layout.
std::uint64_t buffer_bytes(std::span<const LazyTensor> tensors, const Layout& layout, unsigned threads);

}  // namespace safemap::SAFEMAP_ABI::write
