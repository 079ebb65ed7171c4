// TrainingLayout: what the folder of a training framework says of the run that saved it. TrainingState: how far the
// run had come.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Facts about the training run that saved a folder. Members that do not apply are empty.
///
/// Example:
///     auto model = safemap::Checkpoint::open("run/");
///     if (const auto& layout = model.layout(); layout && layout->stage == 3) std::cout << layout->tag << '\n';
struct TrainingLayout {
    /// "deepspeed", "universal", "dcp", "hf_shards", "rank_files", "flat_parameters" or "megatron"
    std::string kind;
    std::optional<int> stage = {};                 ///< ZeRO stage, 0 to 3
    std::optional<std::uint64_t> world_size = {};  ///< ranks of the run, of all kinds of parallelism
    std::string tag = {};                          ///< the folder that was read, "global_step500"
    std::string version = {};                      ///< "0.19.8" of DeepSpeed, "1.0.0" of DCP metadata
    std::string dtype = {};                        ///< the dtype trained in: "fp32", "bf16" or "fp16"
    std::vector<std::string> optimizer = {};       ///< names of the state for each parameter, "exp_avg"
    std::vector<std::uint64_t> mesh = {};          ///< sizes of the device mesh; empty if tensors have different ones
    std::vector<std::string> mesh_names = {};      ///< names of its dimensions, "dp" and "tp"; empty if they have none
    std::optional<std::uint64_t> chunks = {};      ///< parts of all tensors, as the files store them
};

/// How far a training run had come when it saved a checkpoint. Members that no file states are empty.
struct TrainingState {
    std::optional<std::uint64_t> step = {};        ///< steps of the optimizer
    std::optional<double> epoch = {};              ///< as the trainer counts; 1.5 is the middle of the second epoch
    std::optional<double> learning_rate = {};      ///< for the first group of parameters
    std::optional<double> loss_scale = {};         ///< the factor of mixed precision in fp16
    std::optional<std::uint64_t> world_size = {};  ///< ranks of the run, of all kinds of parallelism
};

}  // namespace safemap::SAFEMAP_ABI
