// Checks that the files of all ranks are there, and are of one run: they agree on what every rank writes.
#pragma once

#include "distributed/zero/join_data_ranks.hpp"

#include <cstdint>
#include <optional>

namespace safemap::SAFEMAP_ABI::distributed {

/// Compares the file of a rank with that of the first rank, and drops what is the same in both: the lists of
/// parameters. Throws ranks_differ.
void compare_and_drop(const ModelFile& first, ModelFile& file);
void compare_and_drop(const OptimizerFile& first, OptimizerFile& file);

/// Throws world_mismatch or rank_missing if the files disagree on the number of ranks, ranks_differ if those of models
/// and optimizers are not of one run or a file was saved under the name of another rank, and unsupported_layout for
/// AutoEP. compare_and_drop() must have passed for all files but the first.
void check_ranks(const ModelRankFiles& ranks);

/// Throws ranks_differ if the first files of two model ranks are not of one run and step.
void compare_sets(const ModelRankFiles& first, const ModelRankFiles& set);

/// The field `checkpoint_parallel_dimensions` of a file of model states. Versions before 0.19 do not write it.
struct ParallelDegrees {
    std::optional<std::uint64_t> stages = {};        ///< pp_degree
    std::optional<std::uint64_t> tensor_ranks = {};  ///< tp_degree
};

/// Returns the degrees of a file that was read with Detail::all; a degree of 0 counts as missing. Throws field_missing
/// if one is not a number.
ParallelDegrees parallel_degrees(const ModelFile& file);

/// Compares the number of model ranks that have files with pp_degree × tp_degree and with mp_world_size of the first
/// file, of which the larger counts: both are the stages of a pipeline times the ranks of tensor parallelism. A file
/// with neither says nothing. Throws rank_missing with the names of the files that are missing, and world_mismatch if
/// there are more model ranks than the file says.
void require_model_ranks(const ModelFile& first, const ZeroFiles& files);

/// Compares the number of files of model states that stage 3 writes, one for each rank of data parallelism, with
/// dp_world_size of the first. Throws rank_missing with the names of those that are missing.
void require_ranked_models(const ModelFile& first, const ZeroFiles& files);

}  // namespace safemap::SAFEMAP_ABI::distributed
