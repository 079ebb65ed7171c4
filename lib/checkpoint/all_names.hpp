// Every name of a checkpoint, those of tied tensors too.
#pragma once

#include <safemap/checkpoint.hpp>

#include <cstddef>
#include <string_view>
#include <vector>

namespace safemap::checkpoint {

/// A name, and the number of the tensor it is for. The name lasts as long as the checkpoint.
struct NamedTensor {
    std::string_view name;
    std::size_t tensor;
};

/// What `selection` names, in the order of the checkpoint; the other names of a tied tensor follow its own.
std::vector<NamedTensor> all_names(const Checkpoint& checkpoint, const Selection& selection);

}  // namespace safemap::checkpoint
