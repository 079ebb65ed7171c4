// The key that identifies a save, so that an interrupted save can be resumed.
#pragma once

#include "write/layout.hpp"

#include <safemap/lazy_tensor.hpp>

#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::write {

/// Returns 32 hex digits that are equal for equal files, with equal bytes, from the same places of the same sources.
/// Returns an empty string if a source does not know its own identity, such as memory.
std::string resume_key_of(std::span<const LazyTensor> tensors, const Layout& layout);

}  // namespace safemap::SAFEMAP_ABI::write
