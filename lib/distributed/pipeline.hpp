// The stages of a pipeline, each with some layers of a model, and the files of its layers.
#pragma once

#include "base/folder.hpp"
#include "distributed/found_globals.hpp"
#include "distributed/slices.hpp"
#include "distributed/zero.hpp"

#include <safemap/progress.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns the weights of all stages, in ascending order of their numbers. A name in several stages is a tied layer: it
/// is listed once, and the others become Gathered::replicas. Throws ranks_differ, with both files, if its dtypes or
/// shapes differ between stages.
Gathered join_stages(std::vector<ModelRank> stages);

/// Returns the whole of `ranks`, which are mp_rank = stage × tensor_ranks + tensor_rank, in ascending order: merges the
/// ranks of each stage, and joins the stages. Throws world_mismatch if their number is not a multiple of
/// `tensor_ranks`, and what merge() and join_stages() throw.
Gathered join_model_ranks(std::vector<ModelRank> ranks, std::uint64_t tensor_ranks, const UniversalInfo* info);

/// The files of the layers of one rank of tensor parallelism.
struct LayerFiles {
    std::vector<std::string> files = {};  ///< in ascending order of layers
    Named weights = {};                   ///< `LAYER.KEY`, without leading zeros
};

/// Reads `layer_LL-model_states.pt` or, if that is missing, `layer_LL-model_MM-model_states.pt` of the tensor rank MM.
/// The list is empty if the folder has no such files. Adds the globals of the files to `globals`, unless it is null.
/// Throws what reading throws.
LayerFiles read_layers(const Folder& folder, std::uint64_t tensor_rank, const Work& work = {},
                       FoundGlobals* globals = nullptr);

/// Adds what only the files of layers hold to a joined pipeline: frozen weights and buffers. `buffers` are the names of
/// the buffers. A weight `LAYER.KEY` of a tied layer, whose master is `tied_modules.MODULE.KEY`, becomes an alias of
/// it.
void add_layers(Gathered& joined, const Named& layers, const std::vector<std::string>& buffers);

}  // namespace safemap::SAFEMAP_ABI::distributed
