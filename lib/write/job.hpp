// What tells a save from every other.
#pragma once

#include "write/layout.hpp"

#include <safemap/lazy_tensor.hpp>

#include <span>
#include <string>

namespace safemap::SAFEMAP_ABI::write {

/// 32 hex digits that are the same for the same files, with the same bytes, from the same places of the same sources.
/// Empty where there is a source that does not know its own identity, such as memory.
std::string job_of(std::span<const LazyTensor> tensors, const Layout& layout);

}  // namespace safemap::SAFEMAP_ABI::write
