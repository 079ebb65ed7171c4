// What the kernel caches of the files that tensors stand in: asked about, filled and emptied; and whether the files
// are still what was opened.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A range of a source, which the tensors it came from keep alive.
struct SourceRange {
    const Source* source;
    Extent extent;

    friend bool operator==(const SourceRange&, const SourceRange&) = default;
};

/// Where the values of `tensors` stand: every byte once, by source and offset. Ranges less than a page apart are one.
std::vector<SourceRange> ranges_of(std::span<const LazyTensor> tensors);

// As the members of LazyTensor, for all of them together.
Residency residency(std::span<const LazyTensor> tensors);
void prefetch(std::span<const LazyTensor> tensors, const Work& work);
void evict(std::span<const LazyTensor> tensors);

/// Throws file_changed, with the tensor, where a source of one is not what it was when it was opened. For the end of
/// bulk work: then what was read was there all along.
void require_unchanged(std::span<const LazyTensor> tensors);

}  // namespace safemap::SAFEMAP_ABI
