// Reads TorchScript archives: a pickle of module objects, beside code that is not read. The tensors of the modules
// become a state dict with torch's dotted names.
#pragma once

#include "torch/rebuild.hpp"

#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns true if the root is an object of a compiled class.
bool is_script(const PickleGraph& pickle);
/// Returns the attributes of modules that may hold tensors, by dotted name: a module's own attributes first, then those
/// of its children, in the order of the file. Leaves plain values out. Throws bad_tensor if two attributes have the
/// same name. Throws pickle_too_large if a name is too long, or if all names need more memory than the pickle's size
/// allows: modules that hold each other have endless names.
std::vector<NamedValue> script_state(const PickleGraph& pickle);

}  // namespace safemap::SAFEMAP_ABI::torch
