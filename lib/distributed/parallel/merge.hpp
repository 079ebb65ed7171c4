// Whole weights out of the slices of tensor parallelism. The rules are those of `universal_checkpoint_info`, which
// frameworks write for DeepSpeed's ds_to_universal. Without these rules, slices are not merged.
#pragma once

#include "distributed/model_weights.hpp"
#include "distributed/parallel/rules.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The tensors of one model rank, joined over its ranks of data parallelism.
struct ModelRank {
    std::uint64_t number = 0;  ///< mp_rank
    std::string file = {};     ///< its file of model states, for errors
    ModelWeights joined = {};
};

/// Returns "mp_rank_00/", which the names of weights begin with that are listed by model rank.
std::string rank_prefix(std::uint64_t number);

/// Returns the whole weights of all ranks of tensor parallelism, in ascending order of their numbers, with their
/// optimizer state. One rank is returned as it is. Parameters that no rule names are joined along dimension 0, as
/// ds_to_universal joins them. All weights if `info` is null or has a fault, and otherwise those whose rule does not
/// fit their slices, are listed as `mp_rank_00/NAME`, with a note why. Slices that a rule calls replicated, and boxes
/// that several ranks hold, become ModelWeights::replicas; those of at most 64 KiB, up to 8 MiB in all, are compared
/// here, and a difference is a note. Throws ranks_differ, with both files, if a rank lacks a weight or a state of
/// another, and what whole() and reading throw.
ModelWeights merge(std::vector<ModelRank> ranks, const UniversalInfo* info);

}  // namespace safemap::SAFEMAP_ABI::distributed
