// The copy engine: from any tensors into files that have been laid out.
#pragma once

#include "io/replace.hpp"
#include "write/layout.hpp"

#include <safemap/progress.hpp>

#include <span>

namespace safemap::write {

/// Creates every file of `layout` in `staging`, allocates them all, then fills them on `threads` workers (0: two) and
/// brings each to the disk. The counts of `layout.casts` are filled in. Takes at most 32 MiB for buffers. Throws what
/// reading and writing throw, with the tensor and the file, and cancelled.
void write_files(std::span<const LazyTensor> tensors, Layout& layout, io::Staging& staging, const Monitor& monitor,
                 unsigned threads);

}  // namespace safemap::write
