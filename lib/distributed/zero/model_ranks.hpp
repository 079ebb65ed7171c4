// The number of model ranks of a run, which files of model states say: whether the files of all of them are there.
#pragma once

#include "distributed/zero/zero_file.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

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
