// Checks that the files of all ranks are of one run. Files agree on what every rank writes; a difference means that a
// file was copied from another checkpoint, or left by an older save.
#include "distributed/zero/one_run.hpp"

#include "base/checked.hpp"
#include "base/faults.hpp"
#include "base/text.hpp"
#include "distributed/agree.hpp"
#include "distributed/parallel/experts.hpp"
#include "distributed/values.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

template <class File> Agreement agreement(const File& first, const File& file) {
    return Agreement(first.file, file.file);
}

/// Compares numbers of groups, where both files have them.
void agree_on_groups(const Agreement& agree, const std::string& what, const std::vector<std::optional<double>>& first,
                     const std::vector<std::optional<double>>& here) {
    const auto bits = [](double number) { return std::bit_cast<std::uint64_t>(number); };  // NaN is equal to itself
    for (std::size_t i = 0; i < std::min(first.size(), here.size()); ++i)
        if (first[i] && here[i] && bits(*first[i]) != bits(*here[i]))
            agree.differ(what + " of group " + std::to_string(i), stated_text(*first[i]), stated_text(*here[i]));
}

void agree_on_steps(const Agreement& agree, const ModelFile& first, const ModelFile& file) {
    if (first.steps && file.steps) agree("global_steps", *first.steps, *file.steps);
}

/// Compares the number of files with partition_count and dp_world_size.
void check_world(const ModelRankFiles& set) {
    const OptimizerFile& first = set.optimizers.front();
    const std::uint64_t files = set.optimizers.size();
    const auto& counts = first.partition_count;
    const std::uint64_t partitions = counts.empty() ? files : *std::max_element(counts.begin(), counts.end());
    const std::uint64_t world = set.models.front().data_ranks.value_or(partitions);
    if (partitions == files && world == files) return;
    const std::string said =
        "partition_count says " + std::to_string(partitions) + ", dp_world_size " + std::to_string(world);
    if (partitions > files && world == partitions) {
        const auto like = names::zero_name(first.file.substr(first.file.rfind('/') + 1)).value_or(names::RankedName());
        throw Error(Errc::rank_missing, "files of ranks are missing: " + optimizer_names(like, files, partitions) +
                                            "; there are " + std::to_string(files) + " files, and " + said)
            .with_path(first.file);
    }
    throw Error(Errc::world_mismatch, "there are optimizer files of " + counted(files, "rank") + ", but " + said)
        .with_path(first.file);
}

/// Compares the version that saved the model with that which saved the optimizer.
void check_version(const ModelRankFiles& set) {
    const ModelFile& model = set.models.front();
    const OptimizerFile& file = set.optimizers.front();
    if (model.version.empty() || file.version.empty()) return;
    Agreement(model.file, file.file)("ds_version", model.version, file.version);
}

void agree_on_parameters(const Agreement& agree, const Group& first, const Group& other) {
    agree("the number of parameters of a group", first.size(), other.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
        agree("the name of a parameter", first[i].name, other[i].name);
        agree([&] { return "the shape of " + excerpt(first[i].name); }, first[i].shape, other[i].shape);
    }
}

/// Puts the groups of a file in the order of the first rank. DeepSpeed makes a group for each size of expert
/// parallelism, and goes through their names in the order of a Python set, which is another one in each process. Groups
/// of two sizes have different counts of partitions; groups of one size are in the same order everywhere.
void order_groups(const OptimizerFile& first, OptimizerFile& file) {
    const auto& wanted = first.partition_count;
    const std::vector<std::uint64_t> counts = file.partition_count;
    if (file.stage == 3 || counts == wanted || file.masters.size() != counts.size()) return;
    if (!std::is_permutation(counts.begin(), counts.end(), wanted.begin(), wanted.end())) return;
    std::vector<std::size_t> places;
    std::vector<bool> taken(counts.size());
    for (const std::uint64_t count : wanted) {
        std::size_t place = 0;
        while (taken[place] || counts[place] != count) ++place;
        taken[place] = true;
        places.push_back(place);
    }
    const auto put_in_order = [&places](auto& values) {
        if (values.size() != places.size()) return;
        auto ordered = values;
        for (std::size_t i = 0; i < places.size(); ++i) ordered[i] = std::move(values[places[i]]);
        values = std::move(ordered);
    };
    put_in_order(file.partition_count);
    put_in_order(file.masters);
    put_in_order(file.group_paddings);
    put_in_order(file.gaps);
    put_in_order(file.state);
    put_in_order(file.listed);
    put_in_order(file.steps);
    put_in_order(file.rates);
}

template <class File> void require_own_name(const std::vector<File>& files) {
    for (const File& file : files) {
        if (file.saved_as.empty()) continue;
        Error error(Errc::ranks_differ, "the file was saved as " + excerpt(file.saved_as) +
                                            ": files of ranks were swapped, or one was copied over another");
        throw error.with_path(file.file).with_hint("give each file the name that it was saved under");
    }
}

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

void compare_and_drop(const ModelFile& first, ModelFile& file) {
    const Agreement agree = agreement(first, file);
    agree("the number of groups of param_shapes", first.groups.size(), file.groups.size());
    for (std::size_t group = 0; group < file.groups.size(); ++group)
        agree_on_parameters(agree, first.groups[group], file.groups[group]);
    agree_on_parameters(agree, first.frozen_shapes, file.frozen_shapes);
    agree("dp_world_size", first.data_ranks.value_or(0), file.data_ranks.value_or(0), Errc::world_mismatch);
    agree("ds_version", first.version, file.version);
    agree_on_steps(agree, first, file);
    if (!file.shared.empty() && first.shared.empty())
        throw Error(Errc::ranks_differ,
                    "shared_params lists tied weights, which DeepSpeed writes for rank 0 only, and "
                    "that of " +
                        excerpt(first.file) + " is empty: ranks may be swapped")
            .with_path(file.file);
    file.groups = {};
    file.frozen_shapes = {};
    file.shared = {};
}

void compare_and_drop(const OptimizerFile& first, OptimizerFile& file) {
    const Agreement agree = agreement(first, file);
    agree("the ZeRO stage", first.stage, file.stage);
    agree("the number of groups of fp32 weights", first.masters.size(), file.masters.size());
    order_groups(first, file);
    agree("partition_count", first.partition_count, file.partition_count, Errc::world_mismatch);
    agree("ds_version", first.version, file.version);
    agree_on_groups(agree, "the step", first.steps, file.steps);
    agree_on_groups(agree, "the learning rate", first.rates, file.rates);
    if (file.gaps != first.gaps)
        throw Error(Errc::ranks_differ, "param_alignment_paddings are not those of " + excerpt(first.file))
            .with_path(file.file);
    file.gaps = {};
    if (file.stage != 3) return;
    for (std::size_t group = 0; group < file.masters.size(); ++group)
        agree([&] { return "the number of elements of sub-group " + std::to_string(group); },
              first.masters[group].element_count(), file.masters[group].element_count());
}

void compare_sets(const ModelRankFiles& first, const ModelRankFiles& set) {
    const ModelFile& model = set.models.front();
    const Agreement agree = agreement(first.models.front(), model);
    agree("the ZeRO stage", first.stage(), set.stage());
    agree("ds_version", first.models.front().version, model.version);
    agree_on_steps(agree, first.models.front(), model);
    if (first.optimizers.empty() || set.optimizers.empty()) return;
    const OptimizerFile& there = first.optimizers.front();
    const OptimizerFile& here = set.optimizers.front();
    const Agreement optimizers_agree = agreement(there, here);
    optimizers_agree("ds_version", there.version, here.version);
    // Groups of another stage of a pipeline are others.
    const auto step = [](const OptimizerFile& file) {
        const auto has = [](const auto& each) { return each.has_value(); };
        const auto found = std::find_if(file.steps.begin(), file.steps.end(), has);
        return found == file.steps.end() ? std::vector<std::optional<double>>() : std::vector{*found};
    };
    agree_on_groups(optimizers_agree, "the first step", step(there), step(here));
}

void check_ranks(const ModelRankFiles& set) {
    const ModelFile& model = set.models.front();
    if (model.autoep) throw_autoep(model.file);
    if (!set.optimizers.empty()) check_world(set);
    require_own_name(set.models);
    require_own_name(set.optimizers);
    if (set.optimizers.empty()) return;
    check_version(set);
    const OptimizerFile& first = set.optimizers.front();
    if (model.groups.empty())
        throw Error(Errc::field_missing, "the field param_shapes is missing").with_path(model.file);
    if (first.stage == 3) {
        if (set.models.size() != set.optimizers.size())
            throw Error(Errc::rank_missing, "stage 3 has a file of model states for each of " +
                                                std::to_string(set.optimizers.size()) + " ranks; there are " +
                                                std::to_string(set.models.size()) + " model_states files")
                .with_path(model.file);
        return;
    }
    if (first.masters.size() != model.groups.size())
        throw Error(Errc::ranks_differ, "there are " + std::to_string(first.masters.size()) +
                                            " groups of fp32 weights, but param_shapes of " + excerpt(model.file) +
                                            " has " + std::to_string(model.groups.size()))
            .with_path(first.file);
}

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
    const std::string text = said.where + " says that the run has " + counted(said.ranks, "model rank") +
                             ", and there are files of " + std::to_string(files.model_ranks);
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
