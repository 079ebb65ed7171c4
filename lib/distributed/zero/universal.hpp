// Universal checkpoints: a folder `zero` with a folder for each parameter, as DeepSpeed's ds_to_universal writes them.
#pragma once

#include "base/folder.hpp"
#include "distributed/parallel/rules.hpp"
#include "distributed/pickles.hpp"
#include "distributed/zero/join_data_ranks.hpp"

#include <safemap/progress.hpp>
#include <safemap/state_tree.hpp>

#include <optional>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// A universal checkpoint.
struct Universal {
    ModelWeights joined = {};
    std::vector<std::string> files = {};  ///< files that were read, relative to the tag's folder, sorted
    /// `zero/optimizer_state.pt` without its flat tensors; a dictionary `step`, by parameter, is added where there are
    /// files `step.pt`. Empty if there is neither.
    std::optional<StateTree> rest = {};
    std::optional<int> stage = {};                 ///< ZeRO stage of the checkpoint that was converted
    std::optional<std::uint64_t> data_ranks = {};  ///< its number of ranks of data parallelism
};

/// Options of read_universal().
struct UniversalOptions {
    bool as_stored = false;  ///< exactly what the files `fp32.pt` hold
    bool optimizer = true;   ///< also the state of the parameters
    Work work = {};
    FoundGlobals* globals = nullptr;  ///< gets the globals of the files, unless null; says if unknown ones are refused
};

/// Reads the folder `zero` of a tag's folder. `sets` are the files of model states beside it, by model rank; there may
/// be none. They say the shapes of parameters that are stored flat, the order, ties, and
/// the types of buffers and frozen weights, which `fp32.pt` has as F32 or not at all. `info` is their
/// `universal_checkpoint_info`, or null. Throws:
///
/// - not_a_checkpoint if there is no folder `zero` with folders of parameters
/// - unfinished_checkpoint if a parameter has no `fp32.pt`, one of param_shapes has no folder, or a parameter has no
///   `exp_avg.pt` or `exp_avg_sq.pt` although others have; with `options.optimizer`
/// - rank_missing if a parameter is stored flat, and `sets` is empty, unless `options.as_stored`
/// - piece_mismatch if a file holds another number of elements than its parameter or its `fp32.pt`
/// - field_missing if a file holds a dictionary without `param`
/// - what reading, whole() and merge() throw
Universal read_universal(const Folder& tag, const std::vector<ModelRankFiles>& sets, const UniversalInfo* info,
                         const UniversalOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI::distributed
