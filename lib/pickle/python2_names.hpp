// Translates names of classes and functions that Python 2 and old releases gave to today's names.
#pragma once

#include "pickle/pickle.hpp"

namespace safemap::SAFEMAP_ABI {

/// The first protocol that Python 2 does not write. From it on, Python takes names as they are.
inline constexpr unsigned first_of_python3 = 3;

/// Returns what Python 3 imports for `global` in a pickle of that protocol, with fix_imports at its default. Modules
/// that moved in PyTorch and NumPy get their new names, too. The result may be a view of static tables.
PickleGraph::Global in_python3(const PickleGraph::Global& global, unsigned protocol);

}  // namespace safemap::SAFEMAP_ABI
