// Flattens a nested state dict: gives each of its tensors a name.
#pragma once

#include <safemap/state_tree.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A state tree as a list of named tensors. Owns the tensors' names and keeps their sources open; independent of the
/// tree that it came from.
struct FlatState {
    std::vector<LazyTensor> tensors;  ///< in the order of the tree; tied tensors once
    std::vector<AliasGroup> aliases;  ///< tied tensors: the same object, or the same storage, offset, shape and strides
    std::vector<SkippedObject> skipped;               ///< opaque objects, and module tensors that state_dict() omits
    std::vector<std::string> notes;                   ///< sentences for a person: values that get no name
    std::vector<std::string> lost_without_structure;  ///< sentences: facts that names and tensors cannot express
    bool verbatim = false;  ///< true if the root is a flat dict of tensors, whose keys are the names
};

/// Returns the tensors of `tree` with a name for each.
///
/// 1. A flat dict or OrderedDict of tensors (no NumPy arrays; string keys, none of them empty or `__metadata__`): names
///    are the keys, unchanged.
/// 2. A whole torch.nn.Module (an object with the dictionaries `_parameters`, `_buffers` and `_modules`): names and
///    order are those of its state_dict(), after the module's path: `model/0.conv.weight`. Tensors that state_dict()
///    omits are listed in `skipped`.
/// 3. Anything else: the name is the path, RFC 6901-escaped, without the leading slash: `optimizer/state/0/exp_avg`.
///    docs/format.md has the grammar.
///
/// A container that occurs a second time is noted, not visited again, unless it is a module. Linear in the size of the
/// tree and of the result, at any depth of nesting.
///
/// Example:
///     auto checkpoint = safemap::Checkpoint::open("checkpoint.pt");
///     safemap::FlatState flat;
///     if (const safemap::StateTree* tree = checkpoint.tree()) flat = safemap::flatten(*tree);
[[nodiscard]] SAFEMAP_API FlatState flatten(const StateTree& tree);

}  // namespace safemap::SAFEMAP_ABI
