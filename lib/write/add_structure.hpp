// Adds the structure document to a checkpoint that is saved.
#pragma once

#include "write/file_layout.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>

#include <optional>

namespace safemap::SAFEMAP_ABI::write {

/// Puts the structure document into the metadata of `input`, as `options.structure` says, and puts `safemap.source`
/// there if a document or digests are written. If no document is written, adds notes on what is lost. If the metadata
/// is to be exact, adds nothing to it, and also adds notes on lost names of tied tensors. Returns a document of more
/// than 1 MiB as a tensor, which has to be saved with the others. Throws structure_too_large if the document must be
/// kept. Throws name_collision if another name of a tied tensor is a metadata key with a meaning of its own: `format`,
/// or a key that begins with `safemap.`.
std::optional<LazyTensor> add_structure(const Checkpoint& checkpoint, const SaveOptions& options, Input& input);

}  // namespace safemap::SAFEMAP_ABI::write
