// Queries, fills and evicts the kernel's cache of the files that hold tensors, and checks that the files have not
// changed.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <span>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A range of a source. Valid while the tensors that it came from live.
struct SourceRange {
    const Source* source;
    Extent extent;

    friend bool operator==(const SourceRange&, const SourceRange&) = default;
};

/// Returns the ranges that hold the values of `tensors`, sorted by source and offset, each byte once. Ranges less than
/// a page apart are merged.
std::vector<SourceRange> ranges_of(std::span<const LazyTensor> tensors);

// The members of LazyTensor of the same name, for several tensors at once.
Residency residency(std::span<const LazyTensor> tensors);
void prefetch(std::span<const LazyTensor> tensors, const Work& work);
void evict(std::span<const LazyTensor> tensors);

/// Throws file_changed, with the tensor, if a source of a tensor has changed since it was opened. Call it at the end of
/// bulk work: then all bytes that were read are from the same state of the file.
void require_unchanged(std::span<const LazyTensor> tensors);
void require_unchanged(std::span<const LoadTarget> targets);

}  // namespace safemap::SAFEMAP_ABI
