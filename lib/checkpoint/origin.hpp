// What a checkpoint was before select() and renamed(): its tree and its metadata have the names of that time.
#pragma once

#include <safemap/checkpoint.hpp>

#include <string_view>

namespace safemap::SAFEMAP_ABI::checkpoint {

struct Origin {
    /// Returns `checkpoint` as it was before every select() and renamed().
    static Checkpoint of(const Checkpoint& checkpoint);
    /// Returns the tensor that has `name` in the origin, as `checkpoint` calls it now; null if it is not selected.
    static const LazyTensor* find(const Checkpoint& checkpoint, std::string_view name);
};

}  // namespace safemap::SAFEMAP_ABI::checkpoint
