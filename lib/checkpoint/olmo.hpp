// Safetensors that OLMo wrote (olmo/safetensors_util.py, 2024): names are pickles in base64, and so is every value that
// is no tensor. Read inertly; neither is ever unpickled.
#pragma once

#include "base/faults.hpp"
#include "checkpoint/contents.hpp"

namespace safemap::checkpoint {

/// Where every name is base64 of a pickle of (tuple of keys, whether the value is pickled), gives the tree that they
/// spell, and tensors the names that they have in it. Leaves anything else as it is. Reports the pickle_* faults and
/// bad_tensor of values, and unknown_global as `options` say.
void take_olmo_names(Contents& contents, const OpenOptions& options, FaultSink& faults);

}  // namespace safemap::checkpoint
