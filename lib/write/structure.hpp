// The structure document of a checkpoint that is saved.
#pragma once

#include "write/layout.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>

#include <optional>

namespace safemap::SAFEMAP_ABI::write {

/// Puts the structure document into the metadata of `input`, as `options.structure` says, and `safemap.source`, unless
/// that is to be exact; if there is no document, notes what is lost, other names of tied tensors too. Returns a
/// document of more than 1 MiB as a tensor that has to be saved too. Throws structure_too_large if the document is to
/// be kept in any case, and name_collision if another name of a tied tensor is a key of the metadata that has a
/// meaning: `format`, or one that begins with `safemap.`.
std::optional<LazyTensor> add_structure(const Checkpoint& checkpoint, const SaveOptions& options, Input& input);

}  // namespace safemap::SAFEMAP_ABI::write
