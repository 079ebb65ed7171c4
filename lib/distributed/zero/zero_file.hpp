// The content of one rank's files of DeepSpeed. From the names of files to the contents of a checkpoint:
//
//   names/zero_files  names of files                   -> ZeroFiles
//   keys              one file of a rank               -> ModelFile, OptimizerFile
//   one_run           the files of all ranks agree
//   partitions        where parameters lie in the flat buffers
//   join_data_ranks   all files of one model rank      -> ModelWeights
//   ../parallel       tensor ranks, stages, experts    -> one ModelWeights
//   universal         the folder `zero`                -> one ModelWeights, without partitions
//   read_zero         all of these in their order      -> Contents
#pragma once

#include "distributed/model_weights.hpp"
#include "names/zero_files.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/state_tree.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

using names::ZeroFile;
using names::ZeroFiles;

/// The content of a file of model states. Missing fields are empty.
struct ModelFile {
    std::string file = {};                  ///< path in the folder
    std::uint64_t rank = 0;                 ///< rank of data parallelism; 0 where one file serves all ranks
    std::uint64_t model_rank = 0;           ///< rank of tensor or pipeline parallelism
    std::string saved_as = {};              ///< the name of another rank, if the file was saved under it
    bool has_module = false;                ///< false for a pipeline, whose weights are in the files of its layers
    Named module = {};                      ///< tensors of `module`, in order; stage 3 has placeholders of shape [0]
    std::vector<std::string> objects = {};  ///< names of other values than tensors in `module` and the frozen fragments
    std::vector<std::string> buffers = {};  ///< names
    std::vector<std::string> modules = {};  ///< names of the modules that the state dict is of
    bool without_frozen = false;            ///< saved with exclude_frozen_parameters
    std::vector<Group> groups = {};         ///< the groups of `param_shapes`
    bool one_group = false;                 ///< true for old versions, whose `param_shapes` is one dictionary
    bool lists_buffers = false;             ///< has `buffer_names`
    bool lists_shared = false;              ///< has `shared_params`
    std::vector<Parameter> frozen_shapes = {};
    Named frozen = {};                                             ///< fragments
    std::vector<std::pair<std::string, std::string>> shared = {};  ///< second name, first name
    std::optional<std::uint64_t> data_ranks = {};                  ///< dp_world_size
    std::optional<std::uint64_t> steps = {};         ///< global_steps: those of the optimizer, and skipped ones
    std::optional<std::uint64_t> skipped = {};       ///< skipped_steps
    std::optional<std::uint64_t> model_ranks = {};   ///< mp_world_size: stages of a pipeline times tensor ranks
    bool data_first = false;                         ///< use_data_before_expert_parallelism of the configuration
    std::optional<std::uint64_t> config_stage = {};  ///< ZeRO stage of the configuration
    std::string version = {};
    std::string dtype = {};                   ///< "fp32", "bf16", "fp16" of the configuration
    bool flat_order_is_listed = false;        ///< the configuration is there, and without round_robin_gradients
    std::vector<std::uint64_t> experts = {};  ///< num_experts, by layer
    bool autoep = false;  ///< true if `ds_autoep_layers`, or the older `autoep_layers`, lists layers
    /// Everything else that belongs to the state of the training: counters, scheduler, client state. Only of the first
    /// file.
    StateTree rest = {};
};

/// The content of a file of optimizer states.
struct OptimizerFile {
    std::string file = {};
    std::uint64_t rank = 0;
    std::uint64_t model_rank = 0;
    std::string saved_as = {};  ///< the name of another rank, if the file was saved under it
    bool is_zip = false;        ///< false for the legacy container
    int stage = 0;
    bool bf16_optimizer = false;                      ///< BF16_Optimizer, which writes no `zero_stage`
    std::vector<std::uint64_t> partition_count = {};  ///< one for each group; one for stage 3
    std::vector<LazyTensor> masters = {};  ///< flat, by group or sub-group; without padding if it was stripped
    std::vector<std::uint64_t> group_paddings = {};
    std::vector<std::vector<std::uint64_t>> gaps = {};  ///< param_alignment_paddings, by group and parameter
    std::vector<Named> state = {};  ///< by group: the tensors of the state, such as exp_avg and step
    /// Digests of the parameters' names that `param_slice_mappings` lists, by group: they tell ranks apart.
    std::vector<std::uint64_t> listed = {};
    std::string version = {};
    std::vector<std::optional<double>> steps = {};  ///< by group; by param_groups if the state has none
    std::vector<std::optional<double>> rates = {};  ///< learning rates, by param_groups
    /// Everything else: steps, hyper-parameters, the loss scaler. Only of the first file.
    StateTree rest = {};
};

}  // namespace safemap::SAFEMAP_ABI::distributed
