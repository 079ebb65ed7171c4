// A flat state dict without its tree: tensors under the dictionary's keys. Nearly all state dicts are, and the nodes of
// a tree, which few ask for, take as much memory as all else of an opened checkpoint.
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

struct FlatDict {
    StateTree rest;                 ///< its root is the dictionary, which has its attributes here and no items
    std::vector<LazyTensor> items;  ///< each under its key, which is a verbatim_name(); no key is there twice
};

/// What makes the tree of a flat state dict of its tensors.
struct LateTree {
    /// An item that is tied to one before it.
    struct Tied {
        std::size_t place;     ///< in the dictionary
        std::uint32_t tensor;  ///< among those that are stored
        std::string key;
    };

    StateTree rest;
    std::vector<Tied> tied = {};  ///< in the order of their places

    /// `tensors` are those that are stored, under their keys.
    StateTree tree(std::span<const LazyTensor> tensors) const;
};

/// Does what set_tree() does with the dictionary's tree, but for the tree: late_tree makes that.
void set_flat(Contents& contents, FlatDict dict);

}  // namespace safemap::SAFEMAP_ABI::state
