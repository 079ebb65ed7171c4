// TrainingLayout: what the folder of a training framework says of the run that saved it.
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
    /// "deepspeed", "universal", "dcp", "hf_shards", "rank_files" or "flat_parameters"
    std::string kind;
    std::optional<int> stage = {};                 ///< ZeRO stage, 0 to 3
    std::optional<std::uint64_t> world_size = {};  ///< ranks; of DeepSpeed, those of data parallelism
    std::string tag = {};                          ///< the folder that was read, "global_step500"
    std::string version = {};                      ///< version of DeepSpeed, "0.19.8", or of DCP metadata, "1.0.0"
    std::string dtype = {};                        ///< the dtype trained in: "fp32", "bf16" or "fp16"
    std::vector<std::string> optimizer = {};       ///< names of the state for each parameter, "exp_avg"
    std::vector<std::uint64_t> mesh = {};          ///< sizes of the device mesh; empty if tensors have different ones
    std::vector<std::string> mesh_names = {};      ///< names of its dimensions, "dp" and "tp"; empty if they have none
    std::optional<std::uint64_t> chunks = {};      ///< parts of all tensors, as the files store them
};

}  // namespace safemap::SAFEMAP_ABI
