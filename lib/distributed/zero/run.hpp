// A DeepSpeed checkpoint whose files have been read: everything that its tensors are made of.
#pragma once

#include "distributed/parallel/rules.hpp"
#include "distributed/zero/join_data_ranks.hpp"

#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

struct ZeroRun {
    ZeroFiles files = {};
    std::vector<ModelRankFiles> sets = {};  ///< by model rank
    PartSources sources = {};
    std::optional<UniversalInfo> info = {};  ///< how slices of tensor parallelism are merged
    std::uint64_t tensor_ranks = 1;          ///< model ranks of one stage of a pipeline

    const ModelFile& first_model() const { return sets.front().models.front(); }
    int stage() const noexcept { return sets.front().stage(); }
    /// Returns true for a pipeline, whose files of model states have no `module`: its weights are in files of layers.
    bool is_pipeline() const { return !first_model().has_module; }
};

/// Returns the weights of all model ranks, merged where the files say how, with the state of their optimizer if
/// `options` ask for it.
ModelWeights join_all_ranks(const ZeroRun& run, const JoinOptions& options);

/// Returns the tree of Checkpoint::optimizer(): `optimizer/state/PARAMETER/…` of the weights, and all other state.
StateTree optimizer_tree(const ZeroRun& run, const ModelWeights& joined);
/// Returns the tree for a universal checkpoint, from the tree that its files hold besides the parameters, and the state
/// of the training.
StateTree optimizer_tree(const ModelWeights& joined, const std::optional<StateTree>& rest, const StateTree& training);
/// Returns the states that ranks of experts have without ZeRO, each below the name of its file: expp_rank_0_mp_rank_00.
StateTree optimizer_tree(const ZeroRun& run, const std::vector<std::string>& files,
                         const std::vector<StateTree>& states);

/// Returns the names of the state that each parameter has at stage 0, whose files do not say which parameter it is.
std::vector<std::string> unnamed_state_names(const ZeroRun& run);
/// Returns the names of tensors of the state that are of the partitions of ranks, not of parameters: optimizer_tree()
/// leaves them out. At most 64.
std::vector<std::string> unread_state(const ZeroRun& run);
/// Returns the bytes of the state that parameters have, over all ranks; at stage 0, of the optimizer.
std::uint64_t optimizer_bytes(const ZeroRun& run);
/// Returns what a file of model states holds beside the model and the optimizer: counters, and what the program gave as
/// client state, such as averaged weights.
StateTree training_state(const ModelFile& model);
/// Returns the bytes of all tensors in a tree.
std::uint64_t tensor_bytes(const StateTree& tree);

}  // namespace safemap::SAFEMAP_ABI::distributed
