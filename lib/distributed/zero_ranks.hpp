// Reads one file of a rank of DeepSpeed: keys of every version become a ModelFile or an OptimizerFile.
#pragma once

#include "distributed/values.hpp"
#include "distributed/zero.hpp"
#include "distributed/zero_files.hpp"
#include "torch/named_globals.hpp"

#include <memory>

namespace safemap::SAFEMAP_ABI::distributed {

/// How much of a file is read.
enum class Detail : std::uint8_t {
    all,    ///< everything: of the first file of a model rank
    share,  ///< what differs between ranks, and what is compared
};

/// Reads a file of model states. Throws field_missing, unsafe_call and whatever reading a `.pt` throws.
ModelFile read_model_file(const std::shared_ptr<const Source>& source, const ZeroFile& file, Detail detail,
                          torch::NamedGlobals& globals);
/// Reads a file of optimizer states, likewise.
OptimizerFile read_optimizer_file(const std::shared_ptr<const Source>& source, const ZeroFile& file, Detail detail,
                                  torch::NamedGlobals& globals);

/// Returns the dictionaries of the state of the groups, in `inner`, the optimizer_state_dict of a file.
std::vector<Value> states_of(const Value& inner, int stage);

}  // namespace safemap::SAFEMAP_ABI::distributed
