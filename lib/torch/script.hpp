// TorchScript archives: a pickle of module objects, beside code that is of no interest here. Their tensors become a
// state dict with the dotted names that torch gives it.
#pragma once

#include "torch/rebuild.hpp"

#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Whether the root is an object of a compiled class.
bool is_script(const PickleGraph& pickle);
/// What modules hold and tensors may be in, by dotted names: a module's own first, then its children's, in the order of
/// the file. Plain values are left out. Throws bad_tensor where two have one name, and pickle_too_large where names are
/// longer than anybody's, or more than the pickle's size allows: modules that hold each other have no end of them.
std::vector<NamedValue> script_state(const PickleGraph& pickle);

}  // namespace safemap::SAFEMAP_ABI::torch
