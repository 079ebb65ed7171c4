// Names for the tensors of a nested state dict.
#pragma once

#include <safemap/state_tree.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A tree as names and tensors.
struct FlatState {
    std::vector<LazyTensor> tensors;        ///< in the order of the tree, each stored tensor once
    std::vector<AliasGroup> aliases;        ///< tied tensors: same object, or equal storage, offset, shape, strides
    std::vector<SkippedObject> skipped;     ///< opaque objects, and tensors of modules that state_dict() leaves out
    std::vector<std::string> notes;         ///< human sentences: what has no name
    std::vector<std::string> only_in_tree;  ///< and what names and tensors do not tell
    bool verbatim = false;                  ///< the root was a flat dict of tensors, and names are its keys
};

/// Names for the tensors of a tree. A flat dict or OrderedDict of tensors (no NumPy arrays; string keys, none empty or
/// `__metadata__`) keeps its keys as they are. Otherwise a name is the path, RFC 6901-escaped, without the leading
/// slash: `optimizer/state/0/exp_avg`; docs/format.md has the grammar. In a whole torch.nn.Module (an object with the
/// dictionaries `_parameters`, `_buffers` and `_modules`) names and order are those of its state_dict(), behind the
/// module's path: `model/0.conv.weight`; tensors that are not in there are skipped. Linear in the size of the tree and
/// in what it gives, however deep; a container that occurs again is not walked again but noted, unless it is a module.
SAFEMAP_API FlatState flatten(const StateTree& tree);

}  // namespace safemap::SAFEMAP_ABI
