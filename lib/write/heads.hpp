// Heads with places for digests, once these are known.
#pragma once

#include "base/checksum.hpp"
#include "write/layout.hpp"

#include <safemap/lazy_tensor.hpp>

#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Puts into the head of a file of `layout` what it has places for: the digests of its tensors, and that of all, which
/// wants every digest. `digests` are of `tensors`, the caller's list.
void put_digests(PlannedFile& file, const Layout& layout, std::span<const LazyTensor> tensors,
                 std::span<const Digest> digests);

}  // namespace safemap::SAFEMAP_ABI::write
