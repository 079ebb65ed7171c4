// Safetensors that OLMo wrote (olmo/safetensors_util.py, 2024). Each name is a pickle in base64, and each value that is
// not a tensor is a pickle in a U8 tensor. Both are read inertly: nothing is ever unpickled.
#pragma once

#include "open/readers.hpp"

namespace safemap::SAFEMAP_ABI::open {

/// Sets the tree that the names spell, and gives tensors the names that they have in it. Does so only if every name is
/// the base64 of a pickle of (tuple of keys, bool: the value is pickled), and every such value can be read. Otherwise
/// leaves names and tensors as they are, and adds a note if a value cannot be read. Throws unknown_global as `options`
/// say.
void take_olmo_names(Contents& contents, const OpenOptions& options);

}  // namespace safemap::SAFEMAP_ABI::open
