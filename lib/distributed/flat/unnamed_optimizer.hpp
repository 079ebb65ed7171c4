// State of an optimizer that files of ranks hold in parts, with numbers for parameters and no names: what
// optimizer.state_dict() gives while parameters are flat.
#pragma once

#include <safemap/error.hpp>
#include <safemap/state_tree.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns the paths of the optimizers in a tree, dictionaries with `state` and `param_groups`, whose state holds plain
/// tensors with one dimension and none with more; "" is the root.
std::vector<std::string> local_states(const StateTree& tree);

/// Returns the path of the optimizer whose state has the tensor of this name, if the state is such, or if its
/// parameters have keys that no name can spell. Returns nothing for any other tensor.
std::optional<std::string> optimizer_around(const StateTree& tree, std::string_view tensor);

/// Returns the path of the state of an optimizer.
std::string state_path(const std::string& optimizer);

/// Returns optimizer_unnamed, with what would be needed. `named` if the groups name the parameters (OLMo), so that only
/// the files of the model are missing.
Error unnamed_state(const std::string& optimizer, bool named = false);

}  // namespace safemap::SAFEMAP_ABI::distributed
