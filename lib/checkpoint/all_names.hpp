// Lists the selected tensors, for callers that do not need a checkpoint of them.
#pragma once

#include <safemap/advanced/names.hpp>
#include <safemap/checkpoint.hpp>

#include <vector>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// Returns the tensors of checkpoint.select(selection). Copies nothing else of the checkpoint.
std::vector<LazyTensor> selected(const Checkpoint& checkpoint, const Selection& selection);

/// Returns true if `names[i]` is the first name of its tensor in the result of all_names().
inline bool is_first_name(const std::vector<NamedTensor>& names, std::size_t i) {
    return i == 0 || names[i].tensor != names[i - 1].tensor;
}

}  // namespace safemap::SAFEMAP_ABI::checkpoint
