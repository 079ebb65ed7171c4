// Sorts the files of DeepSpeed by rank, and names those that are missing. Tested by tests/names/zero_files_test.cpp.
#include "names/zero_files.hpp"

#include "base/checked.hpp"
#include "base/folder.hpp"
#include "base/text.hpp"
#include "names/rank_names.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

auto place(const ZeroFile& file) {
    const RankedName& name = file.name;
    return std::tuple(name.model_rank, name.rank, name.layer, name.expert);
}

/// Sorts the files. Throws if two of them are of the same rank.
void sort_ranks(std::vector<ZeroFile>& files) {
    std::sort(files.begin(), files.end(), [](const ZeroFile& a, const ZeroFile& b) {
        return std::pair(place(a), a.file) < std::pair(place(b), b.file);
    });
    const auto same = [](const ZeroFile& a, const ZeroFile& b) { return place(a) == place(b); };
    const auto twice = std::adjacent_find(files.begin(), files.end(), same);
    if (twice == files.end()) return;
    throw Error(Errc::rank_repeated, "two files are of rank " + std::to_string(twice->name.rank) + ": " +
                                         excerpt(twice->file) + " and " + excerpt(std::next(twice)->file));
}

/// Throws if the names begin in two ways: DeepSpeed gives all files of a run the same prefix.
void require_one_prefix(const std::vector<ZeroFile>& optimizers) {
    for (const ZeroFile& file : optimizers)
        if (file.name.prefix != optimizers.front().name.prefix)
            throw Error(Errc::ranks_differ, "optimizer files of two runs: " + excerpt(optimizers.front().file) +
                                                " and " + excerpt(file.file) + " have different prefixes");
}

std::uint64_t ranks_of(const std::vector<ZeroFile>& files) {
    std::uint64_t ranks = 0;
    for (const ZeroFile& file : files) ranks = std::max(ranks, file.name.rank + 1);
    return ranks;
}

/// Calls miss(rank, model_rank) for each pair below the given numbers that has no file. The files are sorted.
template <class Miss>
void each_gap(const std::vector<ZeroFile>& files, std::uint64_t ranks, std::uint64_t model_ranks, Miss&& miss) {
    auto file = files.begin();
    for (std::uint64_t model_rank = 0; model_rank < model_ranks; ++model_rank) {
        for (std::uint64_t rank = 0; rank < ranks; ++rank) {
            if (file != files.end() && file->name.model_rank == model_rank && file->name.rank == rank) ++file;
            else miss(rank, model_rank);
        }
    }
}

/// Throws if numbers are so large, compared with the number of files, that listing the gaps would take long.
void bound_numbers(const ZeroFiles& files, std::uint64_t ranks) {
    const std::uint64_t wanted = ranks * files.model_ranks;
    const std::uint64_t found = files.models.size() + files.optimizers.size();
    constexpr std::uint64_t most = 1 << 20;
    if (wanted > most && wanted > 16 * found)
        throw Error(Errc::rank_missing, "the names of " + std::to_string(found) + " files number " +
                                            std::to_string(ranks) + " ranks and " + std::to_string(files.model_ranks) +
                                            " model ranks; most of their files are missing");
}

NameKind kind_of_models(const ZeroFiles& files) {
    return files.ranked_models ? NameKind::zero_ranked_model : NameKind::zero_model;
}

/// Returns the name of a file of the run, with the prefix of those that are there.
std::string name_of(const ZeroFiles& files, NameKind kind, std::uint64_t rank, std::uint64_t model_rank) {
    const bool has_prefix = kind == NameKind::zero_optimizer && !files.optimizers.empty();
    return spelled({.kind = kind,
                    .rank = rank,
                    .model_rank = model_rank,
                    .prefix = has_prefix ? files.optimizers.front().name.prefix : std::string()});
}

void require_all(const ZeroFiles& files, const Folder* folder) {
    const std::uint64_t ranks = std::max(files.ranks, ranks_of(files.models));
    bound_numbers(files, ranks);
    MissingNames missing;
    const auto miss = [&](NameKind kind) {
        return [&, kind](std::uint64_t rank, std::uint64_t model_rank) {
            std::string name = name_of(files, kind, rank, model_rank);
            const std::string other =
                folder != nullptr && !missing.is_full() ? folder->other_kind(name) : std::string();
            missing.add(other.empty() ? std::move(name) : name + " (" + other + " has this name)");
        };
    };
    if (files.ranks > 0)
        each_gap(files.optimizers, files.ranked_models ? ranks : files.ranks, files.model_ranks,
                 miss(NameKind::zero_optimizer));
    each_gap(files.models, files.ranked_models ? ranks : 1, files.model_ranks, miss(kind_of_models(files)));
    if (missing.count() == 0) return;
    constexpr std::string_view hint =
        "; of stage 3 there is one for each rank, such as zero_pp_rank_0_mp_rank_00_model_states.pt";
    throw Error(Errc::rank_missing, std::to_string(missing.count()) +
                                        (missing.count() == 1 ? " file of a rank is" : " files of ranks are") +
                                        " missing: " + missing.text() + std::string(files.models.empty() ? hint : ""));
}

ZeroFiles sorted(const FileNames& files, const Folder* folder) {
    ZeroFiles found;
    for (const std::string& file : files) {
        auto name = any_zero_name(file);
        if (!name) continue;
        if (largest_number(*name) > largest_zero_number)
            throw Error(Errc::world_mismatch, "a number in the name of the file " + excerpt(file) + " is above " +
                                                  std::to_string(largest_zero_number) + ", which no run has");
        found.ranked_models = found.ranked_models || name->kind == NameKind::zero_ranked_model;
        const bool is_layer = name->kind == NameKind::zero_layer || name->kind == NameKind::zero_shared_layer;
        auto& kind = name->kind == NameKind::zero_optimizer          ? found.optimizers
                     : name->kind == NameKind::zero_expert           ? found.experts
                     : name->kind == NameKind::zero_expert_optimizer ? found.expert_optimizers
                     : is_layer                                      ? found.layers
                                                                     : found.models;
        kind.push_back({file, *std::move(name)});
    }
    for (auto* kind : {&found.models, &found.optimizers, &found.experts, &found.expert_optimizers, &found.layers})
        sort_ranks(*kind);
    require_one_prefix(found.optimizers);
    for (const auto* kind : {&found.models, &found.optimizers})
        for (const ZeroFile& file : *kind) found.model_ranks = std::max(found.model_ranks, file.name.model_rank + 1);
    found.model_ranks = std::max<std::uint64_t>(found.model_ranks, 1);
    found.ranks = ranks_of(found.optimizers);
    require_all(found, folder);
    return found;
}

}  // namespace

ZeroFiles zero_files(const FileNames& files) { return sorted(files, nullptr); }
ZeroFiles zero_files(const Folder& tag) { return sorted(tag.list(), &tag); }

std::string optimizer_names(const RankedName& like, std::uint64_t first, std::uint64_t world) {
    MissingNames missing;
    const std::uint64_t listed = std::min(world, first + MissingNames::most);
    RankedName name = like;
    for (name.rank = first; name.rank < listed; ++name.rank) missing.add(spelled(name));
    missing.add_unnamed(world - std::max(first, listed));
    return missing.text();
}

std::string model_rank_names(const ZeroFiles& files, std::uint64_t first, std::uint64_t end) {
    const std::uint64_t models = files.ranked_models ? std::max(files.ranks, ranks_of(files.models)) : 1;
    MissingNames missing;
    const std::uint64_t listed = std::min(end, first + MissingNames::most);
    for (std::uint64_t model_rank = first; model_rank < listed; ++model_rank) {
        for (std::uint64_t rank = 0; rank < models; ++rank)
            missing.add(name_of(files, kind_of_models(files), rank, model_rank));
        for (std::uint64_t rank = 0; rank < files.ranks; ++rank)
            missing.add(name_of(files, NameKind::zero_optimizer, rank, model_rank));
    }
    missing.add_unnamed(checked_mul(end - std::max(first, listed), models + files.ranks).value_or(0));
    return missing.text();
}

std::string ranked_model_names(const ZeroFiles& files, std::uint64_t first, std::uint64_t world) {
    MissingNames missing;
    const std::uint64_t listed = std::min(world, first + MissingNames::most);
    for (std::uint64_t model_rank = 0; model_rank < files.model_ranks; ++model_rank)
        for (std::uint64_t rank = first; rank < listed; ++rank)
            missing.add(name_of(files, NameKind::zero_ranked_model, rank, model_rank));
    missing.add_unnamed(checked_mul(world - std::max(first, listed), files.model_ranks).value_or(0));
    return missing.text();
}

}  // namespace safemap::SAFEMAP_ABI::names
