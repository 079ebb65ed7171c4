// A flat state dict without its tree: tensors under the dictionary's keys. Nearly all state dicts are flat. The nodes
// of a tree, which few callers need, take as much memory as everything else of an opened checkpoint.
#pragma once

#include "state/contents.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

/// A flat state dict, as read.
struct FlatDict {
    StateTree rest;                 ///< the dictionary as root, with its attributes and without items
    std::vector<LazyTensor> items;  ///< each under its key, which is a verbatim_name(); keys are unique
};

/// The builder of the tree of a flat state dict from its tensors.
struct LateTree {
    /// An item that is tied to an earlier item.
    struct Tied {
        std::size_t place;     ///< place in the dictionary
        std::uint32_t tensor;  ///< number of the stored tensor
        std::string key;
    };

    StateTree rest;
    std::vector<Tied> tied = {};  ///< ordered by place

    /// Returns the tree. `tensors` are the stored tensors, under their keys.
    StateTree tree(std::span<const LazyTensor> tensors) const;
};

/// Sets what set_tree() sets for the dictionary's tree. The tree is made when it is asked for.
void set_flat(Contents& contents, FlatDict dict);

}  // namespace safemap::SAFEMAP_ABI::state
