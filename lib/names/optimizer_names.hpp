// Names of a model and of the state of its optimizer, where trainers save them beside each other.
#pragma once

#include <safemap/api.hpp>

#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::names {

/// A model and the state of its optimizer: names of folders, or globs of sets of rank files.
struct ModelAndOptimizer {
    std::string model;
    std::string optimizer;
};

/// Returns which of two names is the model, and which the state of its optimizer; nothing if the names are not such a
/// pair, or if there are more or fewer than two. The names of a pair differ in one word only: "model", "weights",
/// "pytorch_model" or "pytorch_model_fsdp" in that of the model, "optim" or "optimizer" in the other one. A "_0" after
/// the word can be missing.
///
///     model_world_size_8_rank_*.pt      optim_world_size_8_rank_*.pt    verl, SkyRL
///     pytorch_model_fsdp_0_rank*.bin    optimizer_0_rank*.bin           accelerate with use_dcp=False
///     pytorch_model_fsdp_0              optimizer_0                     accelerate, transformers: folders of DCP
///     weights                           optimizer                       NeMo-RL
///     model                             optim                           NeMo Automodel, OLMo
std::optional<ModelAndOptimizer> model_and_optimizer(const std::vector<std::string>& names);

}  // namespace safemap::SAFEMAP_ABI::names
