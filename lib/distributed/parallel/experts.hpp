// Mixtures of experts: which ranks share the optimizer partition of an expert group, the names of experts in the whole
// model, and the files that hold the 16-bit weights of one expert.
#pragma once

#include "base/folder.hpp"
#include "distributed/model_weights.hpp"
#include "distributed/pickles.hpp"

#include <safemap/progress.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The experts of one rank of expert parallelism. An ordinary group is the case of one share, with all ranks.
struct ExpertShare {
    std::vector<std::uint64_t> ranks = {};  ///< ranks of data parallelism, in the order of their partitions
    Group parameters = {};                  ///< with the names of the whole model
};

/// Returns who holds what of a group whose `parameters`, as `param_shapes` of each rank lists them, are partitioned
/// over `partition_count` of `data_ranks` ranks. Experts are numbered by each rank from 0: expert i of rank E of expert
/// parallelism, which has n, is number E · n + i of the model. Rank r has E = r mod (data_ranks / partition_count); if
/// `data_first`, which is `use_data_before_expert_parallelism` of the configuration, E = r / partition_count. `file` is
/// for errors. Throws world_mismatch if data_ranks is no multiple of partition_count, unsupported_layout if a parameter
/// of a group with several shares is not one of an expert, or if numbers of experts are not 0 to n - 1, and
/// shape_overflow.
std::vector<ExpertShare> expert_shares(const Group& parameters, std::uint64_t data_ranks, std::uint64_t partition_count,
                                       bool data_first, const std::string& file);

/// The files of experts of one model rank.
struct ExpertFiles {
    std::vector<std::string> files = {};
    Named weights = {};  ///< with the names of the whole model, by layer and expert
};

/// Reads `layer_L_expert_E_mp_rank_MM_model_states.pt`, or the older `expert_E_mp_rank_MM_model_states.pt`. `experts`
/// are the numbers of experts by layer, as num_experts lists them. Throws rank_missing, with the names of missing
/// files, world_mismatch for a file of an expert that num_experts does not count, and what reading throws. Without
/// `experts`, the files that are there say how many there are. Adds the globals of the files to `globals`, unless null.
ExpertFiles read_experts(const Folder& folder, std::uint64_t model_rank, const std::vector<std::uint64_t>& experts,
                         const Work& work = {}, FoundGlobals* globals = nullptr);

/// Throws unsupported_layout, with the path `file`, for a checkpoint of AutoEP.
[[noreturn]] void throw_autoep(const std::string& file);

}  // namespace safemap::SAFEMAP_ABI::distributed
