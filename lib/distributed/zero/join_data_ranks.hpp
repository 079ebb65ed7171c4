// Joins the files of one model rank: tensors that are split over the ranks of data parallelism become whole.
#pragma once

#include "distributed/zero/zero_file.hpp"
#include "lazy/whole.hpp"

#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// All files of one model rank.
struct ModelRankFiles {
    std::vector<ModelFile> models = {};          ///< by rank; one, unless stage 3
    std::vector<OptimizerFile> optimizers = {};  ///< by rank; none for stage 0
    bool data_first = false;                     ///< use_data_before_expert_parallelism of the configuration

    /// Returns the ZeRO stage. Without optimizer files, it is that of the configuration, if parameters are listed: they
    /// are for stages from 1 on.
    int stage() const noexcept {
        if (!optimizers.empty()) return optimizers.front().stage;
        const ModelFile& model = models.front();
        return model.groups.empty() ? 0 : static_cast<int>(model.config_stage.value_or(1) % 4);
    }
};

/// Options of join_data_ranks().
struct JoinOptions {
    bool compat = false;     ///< give what DeepSpeed's zero_to_fp32 gives
    bool optimizer = false;  ///< also the state of the parameters
};

/// Returns the fp32 masters of a set, and what has no master, in the order of the module. For stage 0, whose masters
/// have no names, returns the module. check_ranks() must have passed. Throws what whole() throws, not_covered and
/// piece_mismatch if partitions hold another number of elements than the parameters, and ranks_differ.
ModelWeights join_data_ranks(const ModelRankFiles& ranks, const PartSources& sources, const JoinOptions& options);

/// Returns masters that are whole already, and what has no master, in the order of the module.
ModelWeights list_weights(const ModelRankFiles& ranks, const PartSources& sources,
                          std::vector<ModelWeights::Weight> masters);

/// Returns the 16-bit weights and the buffers: the module, as the engine computes with it.
ModelWeights list_module_weights(const ModelRankFiles& ranks);

/// Returns the unnamed masters of stage 0, as `fp32/GROUP/NUMBER`, or `fp32/GROUP` where a group is one flat tensor,
/// and then the buffers.
ModelWeights list_unnamed_masters(const ModelRankFiles& ranks);

/// Returns the names of the state that has an element for each of a parameter: "exp_avg", "exp_avg_sq".
std::vector<std::string> state_names(const ModelRankFiles& ranks);

/// Adds the sources of all tensors that join_data_ranks() makes pieces of.
void add_sources(const ModelRankFiles& ranks, PartSources& sources);

}  // namespace safemap::SAFEMAP_ABI::distributed
