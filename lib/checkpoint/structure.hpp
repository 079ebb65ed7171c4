// The structure document of a checkpoint: see docs/format.md.
#pragma once

#include <safemap/checkpoint.hpp>

#include <functional>
#include <string>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns safemap::structure_of(checkpoint) in which tensors that `stored` refuses are opaque objects too.
std::string document_of(const Checkpoint& checkpoint, const std::function<bool(const LazyTensor&)>& stored);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
