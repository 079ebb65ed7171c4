// What a checkpoint was before select() and renamed(): its tree and its metadata have the names of that time.
#pragma once

#include "state/contents.hpp"

#include <safemap/advanced/structure.hpp>
#include <safemap/checkpoint.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

struct Origin {
    /// Returns where the storages of a `.pt` stand: what torch saves of tensors, those that no tensor refers to too. In
    /// no order; of a plain pickle and in safetensors, none. Valid as long as a copy of the checkpoint.
    static const std::vector<StoragePlace>& storages(const Checkpoint& checkpoint) noexcept;
    /// Returns what safemap::only_in_tree() does.
    static const std::vector<std::string>& only_in_tree(const Checkpoint& checkpoint) noexcept;

    /// Returns `checkpoint` as it was before every select() and renamed().
    static Checkpoint of(const Checkpoint& checkpoint);
    /// Returns the tensor that has `name` in the origin, as `checkpoint` calls it now; null if it is not selected.
    static const LazyTensor* find(const Checkpoint& checkpoint, std::string_view name);
    // Of tree(), without making it.
    static bool has_tree(const Checkpoint& checkpoint) noexcept;
    static bool is_flat(const Checkpoint& checkpoint);
};

}  // namespace safemap::SAFEMAP_ABI::checkpoint
