// Compares what files of model states say of the model ranks with the names of the files that are there.
#include "distributed/zero/model_ranks.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "distributed/values.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <limits>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

std::optional<std::uint64_t> degree(const Value& dimensions, std::string_view key) {
    const auto found = dimensions.find(key);
    if (!found) return std::nullopt;
    const std::uint64_t number = found->count();
    return number > 0 ? std::optional(number) : std::nullopt;
}

/// The number of model ranks, and the field that says it.
struct Said {
    std::uint64_t ranks = 0;
    std::string where = {};
};

/// Returns the larger of the two numbers that a file says: no field says more than there were. 0 if it says nothing.
Said said_by(const ModelFile& file) {
    const Said world{file.model_ranks.value_or(0), "mp_world_size"};
    const ParallelDegrees degrees = parallel_degrees(file);
    if (!degrees.stages || !degrees.tensor_ranks) return world;
    constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t ranks = checked_mul(*degrees.stages, *degrees.tensor_ranks).value_or(most);
    if (ranks < world.ranks) return world;
    return {ranks, "checkpoint_parallel_dimensions (pp_degree " + std::to_string(*degrees.stages) + ", tp_degree " +
                       std::to_string(*degrees.tensor_ranks) + ")"};
}

}  // namespace

ParallelDegrees parallel_degrees(const ModelFile& file) {
    if (file.rest.size() == 0) return {};
    const auto dimensions = Value(file.rest).find("checkpoint_parallel_dimensions");
    if (!dimensions || !dimensions->is_dict()) return {};
    return about_file(file.file, [&] {
        return ParallelDegrees{degree(*dimensions, "pp_degree"), degree(*dimensions, "tp_degree")};
    });
}

void require_model_ranks(const ModelFile& first, const ZeroFiles& files) {
    const Said said = said_by(first);
    if (said.ranks == 0 || said.ranks == files.model_ranks) return;
    const std::string text = said.where + " says that the run has " + std::to_string(said.ranks) +
                             (said.ranks == 1 ? " model rank" : " model ranks") + ", and there are files of " +
                             std::to_string(files.model_ranks);
    if (said.ranks < files.model_ranks) throw Error(Errc::world_mismatch, text).with_path(first.file);
    throw Error(Errc::rank_missing, text + "; missing are " + model_rank_names(files, files.model_ranks, said.ranks))
        .with_path(first.file);
}

void require_ranked_models(const ModelFile& first, const ZeroFiles& files) {
    if (!files.ranked_models || !first.data_ranks) return;
    std::uint64_t ranks = 0;
    for (const ZeroFile& file : files.models) ranks = std::max(ranks, file.name.rank + 1);
    if (ranks >= *first.data_ranks) return;
    throw Error(Errc::rank_missing, "dp_world_size says that the run has " + std::to_string(*first.data_ranks) +
                                        " ranks, and there are files of model states of " + std::to_string(ranks) +
                                        "; missing are " + ranked_model_names(files, ranks, *first.data_ranks))
        .with_path(first.file);
}

}  // namespace safemap::SAFEMAP_ABI::distributed
