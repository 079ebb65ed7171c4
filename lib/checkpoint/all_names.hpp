// The selected tensors, for callers that need no checkpoint of them.
#pragma once

#include <safemap/advanced/names.hpp>
#include <safemap/checkpoint.hpp>

#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns the tensors of checkpoint.select(selection) and copies nothing else.
std::vector<LazyTensor> selected(const Checkpoint& checkpoint, const Selection& selection);

/// Returns true if `names[i]` is the first name of its tensor in what all_names() gave.
inline bool is_first_name(const std::vector<NamedTensor>& names, std::size_t i) {
    return i == 0 || names[i].tensor != names[i - 1].tensor;
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
