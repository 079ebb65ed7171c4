// Fills the places for digests in headers, once the digests are known.
#pragma once

#include "base/checksum.hpp"
#include "write/layout.hpp"

#include <safemap/lazy_tensor.hpp>

#include <span>

namespace safemap::SAFEMAP_ABI::write {

/// Fills the places in the head of a file of `layout`: the digests of its tensors, and the digest of the checkpoint,
/// which needs every tensor's digest. `digests` is in the order of `tensors`, which are written_tensors(). If they are
/// cut for ranks, the digest of the checkpoint needs `layout.whole_digests`.
void put_digests(PlannedFile& file, const Layout& layout, std::span<const LazyTensor> tensors,
                 std::span<const Digest> digests);

}  // namespace safemap::SAFEMAP_ABI::write
