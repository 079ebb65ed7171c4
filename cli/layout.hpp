// Shows what the folder of a training framework says of the run that saved it.
#pragma once

#include "output.hpp"

#include <safemap/open_options.hpp>
#include <safemap/training_layout.hpp>

#include <string>

namespace safemap::cli {

/// Writes the member "layout". It has a key for each member of `layout` that is not empty.
void write_layout(JsonWriter& json, const TrainingLayout& layout);

/// Writes the member "training", with a key for each member of `training` that is set. Writes nothing if none is.
void write_training(JsonWriter& json, const TrainingState& training);
/// Returns the line "training: step 3, epoch 0.375, learning rate 0.01, loss scale 256, 2 ranks"; empty if no member
/// but the number of ranks is set.
std::string training_line(const TrainingState& training);

/// Returns true for a folder of DeepSpeed, whose weights and optimizer can be chosen.
bool is_deepspeed(const TrainingLayout& layout);
/// Returns "stage 3, 64 ranks, tag global_step500, DeepSpeed 0.19.8, bf16", "4 ranks, mesh [2, 2] (dp, tp)" or "1000
/// ranks, torch metadata 1.0.0, 100000 chunks", without what `layout` does not say.
std::string layout_text(const TrainingLayout& layout);
/// Returns the weights that open() has given: those that were asked for, or the default of the layout.
Weights weights_given(const TrainingLayout& layout, Weights asked);

/// Returns a line with format, run and ranks. For DeepSpeed, it is followed by a line with the weights and the state of
/// the optimizer.
std::string layout_lines(const TrainingLayout& layout, std::string_view format, Weights asked);

}  // namespace safemap::cli
