// Parses and spells the names of DeepSpeed's files, sorts files by rank, and lists missing ones.
#include "names/zero_files.hpp"

#include "base/checked.hpp"
#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

using NameKind = ZeroName::Kind;

constexpr std::uint32_t largest_number = 1 << 24;

/// Takes pieces of a name from its beginning.
class NameReader {
public:
    explicit NameReader(std::string_view name) : rest_(name) {}

    bool take(std::string_view text) {
        if (!rest_.starts_with(text)) return false;
        rest_.remove_prefix(text.size());
        return true;
    }
    /// Takes a number. One above the largest is given as that and one.
    bool take(std::uint32_t& number) {
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
        if (error != std::errc() && error != std::errc::result_out_of_range) return false;
        if (error == std::errc::result_out_of_range || number > largest_number) number = largest_number + 1;
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
        return true;
    }
    bool is(std::string_view text) const { return rest_ == text; }

private:
    std::string_view rest_;
};

std::optional<ZeroName> ranked(NameReader name, std::string_view prefix) {
    ZeroName found{.prefix = std::string(prefix)};
    if (!name.take(prefix) || !name.take("zero_pp_rank_") || !name.take(found.rank) || !name.take("_mp_rank_") ||
        !name.take(found.model_rank))
        return std::nullopt;
    if (name.is("_model_states.pt")) found.kind = NameKind::ranked_model;
    else if (name.is("_optim_states.pt") || name.is("optim_states.pt")) found.kind = NameKind::optimizer;
    else return std::nullopt;
    return found;
}

std::optional<ZeroName> layered(NameReader name) {
    ZeroName found{.kind = NameKind::layer};
    if (!name.take("layer_") || !name.take(found.layer)) return std::nullopt;
    if (name.is("-model_states.pt")) return found;
    if (name.take("-model_") && name.take(found.model_rank) && name.is("-model_states.pt")) return found;
    return std::nullopt;
}

std::optional<ZeroName> of_expert(NameReader name) {
    ZeroName found{.kind = NameKind::expert};
    if (name.take("layer_") && !(name.take(found.layer) && name.take("_"))) return std::nullopt;
    if (name.take("expert_") && name.take(found.expert) && name.take("_mp_rank_") && name.take(found.model_rank) &&
        name.is("_model_states.pt"))
        return found;
    return std::nullopt;
}

std::optional<ZeroName> of_expert_optimizer(NameReader name) {
    ZeroName found{.kind = NameKind::expert_optimizer};
    if (name.take("expp_rank_") && name.take(found.expert) && name.take("_mp_rank_") && name.take(found.model_rank) &&
        name.is("_optim_states.pt"))
        return found;
    return std::nullopt;
}

std::optional<ZeroName> of_model(NameReader name) {
    ZeroName found{.kind = NameKind::model};
    if (name.take("mp_rank_") && name.take(found.model_rank) && name.is("_model_states.pt")) return found;
    return std::nullopt;
}

auto place(const ZeroFile& file) {
    const ZeroName& name = file.name;
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

std::string number_text(std::uint64_t number, std::size_t digits) {
    std::string text = std::to_string(number);
    if (text.size() < digits) text.insert(0, digits - text.size(), '0');
    return text;
}

std::string ranked_text(std::string_view prefix, std::uint64_t rank, std::uint64_t model_rank, std::string_view after) {
    return std::string(prefix) + "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_" + number_text(model_rank, 2) +
           std::string(after);
}

std::string model_text(std::uint64_t model_rank) {
    return "mp_rank_" + number_text(model_rank, 2) + "_model_states.pt";
}

/// Collects names of missing files, for one message.
class Missing {
public:
    static constexpr std::size_t most = 64;  ///< names in the message

    explicit Missing(const Folder* folder = nullptr) : folder_(folder) {}

    void add(std::string name) {
        if (names_.size() < most) {
            const std::string kind = folder_ != nullptr ? folder_->other_kind(name) : std::string();
            if (!kind.empty()) name += " (" + kind + " has this name)";
            names_.push_back(std::move(name));
        }
        ++count_;
    }
    void add_unnamed(std::uint64_t count) { count_ += count; }
    std::string text() const {
        std::string text;
        for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + name;
        if (count_ > names_.size()) text += " and " + std::to_string(count_ - names_.size()) + " more";
        return text;
    }
    void refuse(std::string_view hint) const {
        if (count_ > 0)
            throw Error(Errc::rank_missing, std::to_string(count_) +
                                                (count_ == 1 ? " file of a rank is" : " files of ranks are") +
                                                " missing: " + text() + std::string(hint));
    }

private:
    const Folder* folder_;  ///< null if it is not known
    std::vector<std::string> names_ = {};
    std::uint64_t count_ = 0;
};

std::uint32_t ranks_of(const std::vector<ZeroFile>& files) {
    std::uint32_t ranks = 0;
    for (const ZeroFile& file : files) ranks = std::max(ranks, file.name.rank + 1);
    return ranks;
}

/// Calls miss(rank, model_rank) for each pair below the given numbers that has no file. The files are sorted.
template <class Miss>
void each_gap(const std::vector<ZeroFile>& files, std::uint32_t ranks, std::uint32_t model_ranks, Miss&& miss) {
    auto file = files.begin();
    for (std::uint32_t model_rank = 0; model_rank < model_ranks; ++model_rank) {
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            if (file != files.end() && file->name.model_rank == model_rank && file->name.rank == rank) ++file;
            else miss(rank, model_rank);
        }
    }
}

/// Throws if numbers are so large, compared with the number of files, that listing the gaps would take long.
void bound_numbers(const ZeroFiles& files, std::uint32_t ranks) {
    const std::uint64_t wanted = std::uint64_t{ranks} * files.model_ranks;
    const std::uint64_t found = files.models.size() + files.optimizers.size();
    constexpr std::uint64_t most = 1 << 20;
    if (wanted > most && wanted > 16 * found)
        throw Error(Errc::rank_missing, "the names of " + std::to_string(found) + " files number " +
                                            std::to_string(ranks) + " ranks and " + std::to_string(files.model_ranks) +
                                            " model ranks; most of their files are missing");
}

void require_all(const ZeroFiles& files, const Folder* folder) {
    const std::uint32_t ranks = std::max(files.ranks, ranks_of(files.models));
    bound_numbers(files, ranks);
    Missing missing(folder);
    if (files.ranks > 0) {
        const std::string prefix = files.optimizers.front().name.prefix;
        each_gap(files.optimizers, files.ranked_models ? ranks : files.ranks, files.model_ranks,
                 [&](std::uint32_t rank, std::uint32_t model_rank) {
                     missing.add(ranked_text(prefix, rank, model_rank, "_optim_states.pt"));
                 });
    }
    each_gap(files.models, files.ranked_models ? ranks : 1, files.model_ranks,
             [&](std::uint32_t rank, std::uint32_t model_rank) {
                 missing.add(files.ranked_models ? ranked_text({}, rank, model_rank, "_model_states.pt")
                                                 : model_text(model_rank));
             });
    missing.refuse(files.models.empty()
                       ? "; of stage 3 there is one for each rank, such as zero_pp_rank_0_mp_rank_00_model_states.pt"
                       : "");
}

}  // namespace

namespace {

/// Parses a file name. Numbers above the largest are given as that and one.
std::optional<ZeroName> parsed_name(std::string_view file) {
    const NameReader name(file);
    for (const std::string_view prefix : {"", "bf16_", "fp16_"})
        if (auto found = ranked(name, prefix)) return found;
    if (auto found = of_model(name)) return found;
    if (auto found = layered(name)) return found;
    if (auto found = of_expert(name)) return found;
    return of_expert_optimizer(name);
}

bool has_large_number(const ZeroName& name) {
    return std::max({name.rank, name.model_rank, name.layer, name.expert}) > largest_number;
}

}  // namespace

std::optional<ZeroName> zero_name(std::string_view file) {
    auto name = parsed_name(file);
    if (name && has_large_number(*name)) return std::nullopt;
    return name;
}

namespace {

ZeroFiles sorted(const FileNames& files, const Folder* folder) {
    ZeroFiles found;
    for (const std::string& file : files) {
        auto name = parsed_name(file);
        if (!name) continue;
        if (has_large_number(*name))
            throw Error(Errc::world_mismatch, "a number in the name of the file " + excerpt(file) + " is above " +
                                                  std::to_string(largest_number) + ", which no run has");
        found.ranked_models = found.ranked_models || name->kind == NameKind::ranked_model;
        auto& kind = name->kind == NameKind::optimizer          ? found.optimizers
                     : name->kind == NameKind::expert           ? found.experts
                     : name->kind == NameKind::expert_optimizer ? found.expert_optimizers
                     : name->kind == NameKind::layer            ? found.layers
                                                                : found.models;
        kind.push_back({file, *std::move(name)});
    }
    for (auto* kind : {&found.models, &found.optimizers, &found.experts, &found.expert_optimizers, &found.layers})
        sort_ranks(*kind);
    require_one_prefix(found.optimizers);
    for (const auto* kind : {&found.models, &found.optimizers})
        for (const ZeroFile& file : *kind) found.model_ranks = std::max(found.model_ranks, file.name.model_rank + 1);
    found.model_ranks = std::max(found.model_ranks, 1U);
    found.ranks = ranks_of(found.optimizers);
    require_all(found, folder);
    return found;
}

}  // namespace

ZeroFiles zero_files(const FileNames& files) { return sorted(files, nullptr); }
ZeroFiles zero_files(const Folder& tag) { return sorted(tag.list(), &tag); }

std::string optimizer_names(const ZeroName& like, std::uint64_t first, std::uint64_t world) {
    Missing missing;
    const std::uint64_t listed = std::min(world, first + Missing::most);
    for (std::uint64_t rank = first; rank < listed; ++rank)
        missing.add(ranked_text(like.prefix, rank, like.model_rank, "_optim_states.pt"));
    missing.add_unnamed(world - std::max(first, listed));
    return missing.text();
}

std::string model_rank_names(const ZeroFiles& files, std::uint64_t first, std::uint64_t end) {
    const std::uint64_t ranks = std::max<std::uint64_t>(1, std::max(files.ranks, ranks_of(files.models)));
    Missing missing;
    const std::uint64_t listed = std::min(end, first + Missing::most);
    for (std::uint64_t model_rank = first; model_rank < listed; ++model_rank) {
        if (!files.ranked_models) missing.add(model_text(model_rank));
        for (std::uint64_t rank = 0; files.ranked_models && rank < ranks; ++rank)
            missing.add(ranked_text({}, rank, model_rank, "_model_states.pt"));
        for (std::uint64_t rank = 0; rank < files.ranks; ++rank)
            missing.add(ranked_text(files.optimizers.front().name.prefix, rank, model_rank, "_optim_states.pt"));
    }
    const std::uint64_t each = (files.ranked_models ? ranks : 1) + files.ranks;
    missing.add_unnamed(checked_mul(end - std::max(first, listed), each).value_or(0));
    return missing.text();
}

std::string ranked_model_names(const ZeroFiles& files, std::uint64_t first, std::uint64_t world) {
    Missing missing;
    const std::uint64_t listed = std::min(world, first + Missing::most);
    for (std::uint64_t model_rank = 0; model_rank < files.model_ranks; ++model_rank)
        for (std::uint64_t rank = first; rank < listed; ++rank)
            missing.add(ranked_text({}, rank, model_rank, "_model_states.pt"));
    missing.add_unnamed(checked_mul(world - std::max(first, listed), files.model_ranks).value_or(0));
    return missing.text();
}

}  // namespace safemap::SAFEMAP_ABI::names
