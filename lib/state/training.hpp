// The state of a training among the values of a tree: which tensors belong to it, and not to the model, and how far the
// training had come.
#pragma once

#include <safemap/state_tree.hpp>
#include <safemap/training_layout.hpp>

#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

/// Returns true for the state dict of an optimizer of torch, and for the optimizer itself.
bool is_optimizer(const StateTree& tree, StateTree::NodeId at);
/// Returns for each node true if it belongs to the model, and false if it is only reached through the state of the
/// training. That is the state dict of an optimizer of torch (`state` and `param_groups`), wherever it is, and what is
/// below a key that is called after an optimizer, a scheduler, a loss scaler or a random number generator. Linear.
std::vector<bool> nodes_of_model(const StateTree& tree);
/// Does the same by the name of a tensor in a checkpoint without a tree: "optimizer/state/0/exp_avg",
/// "optimizer.state.embed.exp_avg".
bool is_named_in_training(std::string_view name);

/// Sets the members of `known` that are empty and that the tree states. Looks at the entries of the root and of the
/// dictionaries that trainers put there, and at the first optimizer. May read a tensor without dimensions; one that
/// cannot be read says nothing.
void add_training(const StateTree& tree, TrainingState& known);
/// Sets the step, if it is empty, to that of the first parameter in the state of an optimizer, likewise.
void add_step_of_optimizer(const StateTree& tree, TrainingState& known);

}  // namespace safemap::SAFEMAP_ABI::state
