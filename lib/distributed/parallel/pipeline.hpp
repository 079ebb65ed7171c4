// The stages of a pipeline, each with some layers of a model, and the files of its layers.
#pragma once

#include "base/folder.hpp"
#include "distributed/model_weights.hpp"
#include "distributed/parallel/merge.hpp"
#include "distributed/pickles.hpp"

#include <safemap/progress.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Returns the weights of all stages, in ascending order of their numbers. A name in several stages is a tied layer: it
/// is listed once, and the others become ModelWeights::replicas. Throws ranks_differ, with both files, if its dtypes or
/// shapes differ between stages.
ModelWeights join_stages(std::vector<ModelRank> stages);

/// Returns the whole of `ranks`, which are mp_rank = stage × tensor_ranks + tensor_rank, in ascending order: merges the
/// ranks of each stage, and joins the stages. Throws world_mismatch if their number is not a multiple of
/// `tensor_ranks`, and what merge() and join_stages() throw.
ModelWeights join_model_ranks(std::vector<ModelRank> ranks, std::uint64_t tensor_ranks, const UniversalInfo* info);

/// The files of the layers of one rank of tensor parallelism.
struct LayerFiles {
    std::vector<std::string> files = {};      ///< in ascending order of layers
    std::vector<std::uint64_t> numbers = {};  ///< layers, by file
    Named weights = {};                       ///< `LAYER.KEY`, without leading zeros
    bool shared = false;                      ///< true if the files are of all ranks
};

/// Reads `layer_LL-model_states.pt` or, if that is missing, `layer_LL-model_MM-model_states.pt` of the tensor rank MM.
/// The list is empty if the folder has no such files. Adds the globals of the files to `globals`, unless it is null.
/// Throws what reading throws.
LayerFiles read_layers(const Folder& folder, std::uint64_t tensor_rank, const Work& work = {},
                       FoundGlobals* globals = nullptr);

/// Returns the name of the file of a layer; without a tensor rank, of the file that all ranks share.
std::string layer_name(std::uint64_t layer, std::optional<std::uint64_t> tensor_rank);

/// Returns the number of the layer that a name `LAYER.KEY` begins with; nothing for a name of another form.
std::optional<std::uint64_t> layer_of(std::string_view name);

/// Compares the layers of all tensor ranks, which are in ascending order. Throws rank_missing, with the names of the
/// files, if one lacks the file of a layer that another has; ranks_differ if such files hold other names. `folder` is
/// the path of the folder, for errors.
void require_same_layers(const std::vector<LayerFiles>& ranks, const std::string& folder);

/// The stages of layers, by the number of the layer. A layer without an entry is in the stage of the entry before it,
/// or of the first entry: stages are runs of layers.
using LayerStages = std::map<std::uint64_t, std::uint64_t>;

/// Returns the layers of all tensor ranks, merged in each stage as the ranks of a stage are. A weight that is not
/// merged is listed by the number of its model rank: stage × tensor ranks + tensor rank. Throws what merge() throws.
ModelWeights merge_layers(std::vector<LayerFiles> ranks, const LayerStages& stages, const std::string& folder,
                          const UniversalInfo* info);

/// Adds what only the files of layers hold to a joined pipeline: frozen weights and buffers. `buffers` are the names of
/// the buffers. A weight `LAYER.KEY` of a tied layer, whose master is `tied_modules.MODULE.KEY`, becomes an alias of
/// it, if it has the values of the master in its own dtype: its beginning, middle and end are read and compared, 32 KiB
/// each, and all of it becomes one of ModelWeights::replicas. At most 1,024 weights are compared; others are listed.
void add_layers(ModelWeights& joined, const Named& layers, const std::vector<std::string>& buffers);

}  // namespace safemap::SAFEMAP_ABI::distributed
