// Checks that the files of all ranks are of one run. Files agree on what every rank writes; a difference means that a
// file was copied from another checkpoint, or left by an older save.
#include "base/text.hpp"
#include "distributed/experts.hpp"
#include "distributed/zero_files.hpp"
#include "distributed/zero_gather.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

/// Throws ranks_differ: `what` names the field, and the texts are its values in the two files.
template <class File>
[[noreturn]] void differ(const std::string& what, const File& first, const std::string& there, const File& file,
                         const std::string& here, Errc code = Errc::ranks_differ) {
    throw Error(code, what + " is " + here + ", but " + excerpt(first.file) + " of rank " + std::to_string(first.rank) +
                          " has " + there)
        .with_path(file.file);
}

template <class File, class Number>
void require_same(const std::string& what, const File& first, Number there, const File& file, Number here,
                  Errc code = Errc::ranks_differ) {
    if (there != here) differ(what, first, std::to_string(there), file, std::to_string(here), code);
}

std::string step_text(double step) {
    constexpr double most = 1e15;
    return step > -most && step < most && step == std::trunc(step) ? std::to_string(static_cast<std::int64_t>(step))
                                                                   : std::to_string(step);
}

std::string numbers_text(const std::vector<std::uint64_t>& numbers) {
    std::string text = "[";
    for (std::size_t i = 0; i < numbers.size() && i < 8; ++i) text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
    return text + (numbers.size() > 8 ? ", …]" : "]");
}

/// Compares the number of files with partition_count and dp_world_size.
void check_world(const RankSet& set) {
    const OptimizerFile& first = set.optimizers.front();
    const std::uint64_t files = set.optimizers.size();
    const auto& counts = first.partition_count;
    const std::uint64_t partitions = counts.empty() ? files : *std::max_element(counts.begin(), counts.end());
    const std::uint64_t world = set.models.front().data_ranks.value_or(partitions);
    if (partitions == files && world == files) return;
    const std::string said =
        "partition_count says " + std::to_string(partitions) + ", dp_world_size " + std::to_string(world);
    if (partitions > files && world == partitions) {
        const auto like = zero_name(first.file.substr(first.file.rfind('/') + 1)).value_or(ZeroName());
        throw Error(Errc::rank_missing, "files of ranks are missing: " + optimizer_names(like, files, partitions) +
                                            "; there are " + std::to_string(files) + " files, and " + said)
            .with_path(first.file);
    }
    throw Error(Errc::world_mismatch, "there are optimizer files of " + std::to_string(files) +
                                          (files == 1 ? " rank" : " ranks") + ", but " + said)
        .with_path(first.file);
}

void check_parameters(const Group& first, const Group& other, const ModelFile& first_file, const ModelFile& file) {
    require_same("the number of parameters of a group", first_file, first.size(), file, other.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
        if (first[i].name != other[i].name)
            differ("the name of a parameter", first_file, excerpt(first[i].name), file, excerpt(other[i].name));
        if (first[i].shape != other[i].shape)
            differ("the shape of " + excerpt(first[i].name), first_file, to_string(first[i].shape), file,
                   to_string(other[i].shape));
    }
}

}  // namespace

void compare_and_drop(const ModelFile& first, ModelFile& file) {
    require_same("the number of groups of param_shapes", first, first.groups.size(), file, file.groups.size());
    for (std::size_t group = 0; group < file.groups.size(); ++group)
        check_parameters(first.groups[group], file.groups[group], first, file);
    check_parameters(first.frozen_shapes, file.frozen_shapes, first, file);
    require_same("dp_world_size", first, first.data_ranks.value_or(0), file, file.data_ranks.value_or(0),
                 Errc::world_mismatch);
    if (file.version != first.version) differ("ds_version", first, excerpt(first.version), file, excerpt(file.version));
    file.groups = {};
    file.frozen_shapes = {};
}

void compare_and_drop(const OptimizerFile& first, OptimizerFile& file) {
    require_same("the ZeRO stage", first, first.stage, file, file.stage);
    require_same("the number of groups of fp32 weights", first, first.masters.size(), file, file.masters.size());
    if (file.partition_count != first.partition_count)
        differ("partition_count", first, numbers_text(first.partition_count), file, numbers_text(file.partition_count),
               Errc::world_mismatch);
    if (file.version != first.version) differ("ds_version", first, excerpt(first.version), file, excerpt(file.version));
    if (file.step && first.step &&
        std::bit_cast<std::uint64_t>(*file.step) != std::bit_cast<std::uint64_t>(*first.step))
        differ("the step of the optimizer", first, step_text(*first.step), file, step_text(*file.step));
    if (file.gaps != first.gaps)
        throw Error(Errc::ranks_differ, "param_alignment_paddings are not those of " + excerpt(first.file))
            .with_path(file.file);
    file.gaps = {};
    if (file.stage != 3) return;
    for (std::size_t group = 0; group < file.masters.size(); ++group)
        require_same("the number of elements of sub-group " + std::to_string(group), first,
                     first.masters[group].element_count(), file, file.masters[group].element_count());
}

void check_ranks(const RankSet& set) {
    const ModelFile& model = set.models.front();
    if (model.autoep) throw_autoep(model.file);
    if (set.optimizers.empty()) return;
    check_world(set);
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

}  // namespace safemap::SAFEMAP_ABI::distributed
