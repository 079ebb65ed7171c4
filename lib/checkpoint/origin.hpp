// Access to the checkpoint before select() and renamed(). Its tree and its metadata have the names of that time.
#pragma once

#include "state/contents.hpp"

#include <safemap/advanced/structure.hpp>
#include <safemap/checkpoint.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

class SortedNames;

/// The origin of a checkpoint, and the parts of its state that other layers need.
struct Origin {
    /// Returns the places of the storages of a `.pt`: everything that torch saves of tensors, including storages that
    /// no tensor refers to. The order is unspecified. Empty for a plain pickle and for safetensors. Valid as long as a
    /// copy of the checkpoint.
    static const std::vector<StoragePlace>& storages(const Checkpoint& checkpoint) noexcept;
    /// Returns the same as safemap::lost_without_structure().
    static const std::vector<std::string>& lost_without_structure(const Checkpoint& checkpoint) noexcept;
    /// Returns true if a file should say that the names of the checkpoint are final: those of a part, or others than
    /// were opened.
    static bool has_final_names(const Checkpoint& checkpoint);
    static const SortedNames& sorted_names(const Checkpoint& checkpoint) noexcept;

    /// Returns `checkpoint` as it was before every select() and renamed().
    static Checkpoint of(const Checkpoint& checkpoint);
    /// Returns a checkpoint with a tensor for each name of `checkpoint`, and without ties.
    static Checkpoint untied(const Checkpoint& checkpoint);
    /// Returns the tensor that has `name` in the origin, under its name in `checkpoint`. Returns null if it is not
    /// selected.
    static const LazyTensor* find(const Checkpoint& checkpoint, std::string_view name);
    // These report on tree() without creating it.
    static bool has_tree(const Checkpoint& checkpoint) noexcept;
    static bool is_flat(const Checkpoint& checkpoint);
};

/// Returns safemap::structure_of(checkpoint). Calls `named` with each tensor that the document names.
std::string document_of(const Checkpoint& checkpoint, const std::function<void(const LazyTensor&)>& named);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
