// Names of classes and functions that Python 2 and old releases gave, in today's names.
#pragma once

#include "pickle/pickle.hpp"

namespace safemap::SAFEMAP_ABI {

/// The first protocol that Python 2 does not write. From there on Python takes names as they are.
inline constexpr unsigned first_of_python3 = 3;

/// Returns what Python 3 imports for `global` in a pickle of that protocol, with fix_imports as by default. Modules
/// that moved in PyTorch and NumPy have their new names, too. The result may view tables of this file.
PickleGraph::Global in_python3(const PickleGraph::Global& global, unsigned protocol);

}  // namespace safemap::SAFEMAP_ABI
