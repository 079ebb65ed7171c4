// The structure document of a checkpoint: see docs/format.md.
#pragma once

#include <safemap/checkpoint.hpp>

#include <functional>
#include <string>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns safemap::structure_of(checkpoint). Calls `named` with each tensor that the document names.
std::string document_of(const Checkpoint& checkpoint, const std::function<void(const LazyTensor&)>& named);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
