// The layers of a pipeline that was saved: the files of all tensor ranks, compared with what the stages say.
#pragma once

#include "base/folder.hpp"
#include "distributed/pickles.hpp"
#include "distributed/zero/run.hpp"

#include <safemap/progress.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// Which weights of the layers are wanted.
enum class LayerWeights : std::uint8_t {
    all,        ///< the 16-bit copies of everything
    untrained,  ///< without the parameters of the optimizer: frozen weights, buffers and second names of ties
};

/// Returns the weights in the files of a pipeline's layers, merged over tensor parallelism, and adds the names of the
/// files to `files`, and their globals to `found`. Throws rank_missing, with the names, if there are no such files, if
/// one of a tensor rank is missing, or if none holds a parameter `LAYER.KEY` that a stage lists; ranks_differ, and what
/// reading and merge() throw.
ModelWeights pipeline_layers(const Folder& folder, const ZeroRun& run, LayerWeights wanted, const Work& work,
                             FoundGlobals& found, std::vector<std::string>& files);

}  // namespace safemap::SAFEMAP_ABI::distributed
