// Shows what the folder of a training framework says of the run that saved it.
#pragma once

#include "output.hpp"

#include <safemap/open_options.hpp>
#include <safemap/training_layout.hpp>

#include <string>

namespace safemap::cli {

/// Writes the member "layout". It has a key for each member of `layout` that is not empty.
void write_layout(JsonWriter& json, const TrainingLayout& layout);

/// Returns "stage 3, 64 ranks, tag global_step500, DeepSpeed 0.19.8, bf16", without what `layout` does not say.
std::string layout_text(const TrainingLayout& layout);
/// Returns the weights that open() has given: those that were asked for, or the default of the layout.
Weights weights_given(const TrainingLayout& layout, Weights asked);

/// Returns two lines: format, run and ranks; and the weights and the state of the optimizer.
std::string layout_lines(const TrainingLayout& layout, std::string_view format, Weights asked);

}  // namespace safemap::cli
