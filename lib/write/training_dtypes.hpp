// Which dtypes the state of a training is written with: SaveOptions::dtype is for the model.
#pragma once

#include "write/file_layout.hpp"

#include <safemap/save.hpp>

namespace safemap::SAFEMAP_ABI::write {

/// Adds to `input.stay` the dtypes of the tensors that belong to the optimizer's state and not to the model: their own,
/// or SaveOptions::optimizer_dtype. `input.tensors` are those of the checkpoint. Adds notes that count the tensors that
/// `dtype` does not cast, and tensors of F64 that lose precision though few expect it: those without dimensions, and
/// all in a checkpoint of a training. Reads nothing.
void set_training_dtypes(const Checkpoint& checkpoint, const SaveOptions& options, Input& input);

}  // namespace safemap::SAFEMAP_ABI::write
