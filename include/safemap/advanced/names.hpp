// Every name of a checkpoint, those of tied tensors too.
#pragma once

#include <safemap/checkpoint.hpp>

#include <cstddef>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// A name, and the number of the tensor that it is for: checkpoint.tensor(number).
struct NamedTensor {
    std::string_view name;  ///< lasts as long as the checkpoint or a copy of it
    std::size_t tensor;
};
/// Every name that is selected, those of tied tensors too: in the order of the tensors, and of one tensor its own name
/// first, then the others in the order of aliases(). May be called from several threads at once.
SAFEMAP_API std::vector<NamedTensor> all_names(const Checkpoint& checkpoint, const Selection& selection = {});
std::vector<NamedTensor> all_names(const Checkpoint&& checkpoint, const Selection& selection = {}) = delete;

}  // namespace safemap::SAFEMAP_ABI
