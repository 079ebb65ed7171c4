// Safetensors that OLMo wrote (olmo/safetensors_util.py, 2024): names are pickles in base64, and so is every value that
// is no tensor. Read inertly; neither is ever unpickled.
#pragma once

#include "open/readers.hpp"

namespace safemap::SAFEMAP_ABI::open {

/// Where every name is base64 of a pickle of (tuple of keys, whether the value is pickled), and every such value can be
/// read, gives the tree that they spell, and tensors the names that they have in it. Leaves anything else as it is.
/// Throws unknown_global as `options` say.
void take_olmo_names(Contents& contents, const OpenOptions& options);

}  // namespace safemap::SAFEMAP_ABI::open
