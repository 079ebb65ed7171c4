// Sorts files by rank. Tested by tests/names/rank_names_test.cpp.
#include "names/rank_names.hpp"

#include "base/text.hpp"
#include "names/folder_shape.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

constexpr std::size_t most_listed = 64;

/// Returns the names' common set and their ranks; nothing if a name gives no rank, or another set.
std::optional<std::vector<RankFile>> parsed(const std::vector<std::string>& files) {
    std::vector<RankFile> found;
    for (const std::string& file : files) {
        auto one = rank_file(file);
        if (!one || (!found.empty() && one->set != found.front().set)) return std::nullopt;
        found.push_back(*std::move(one));
    }
    return found;
}

std::string names_and_count(const std::vector<std::string>& names, std::uint64_t all) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + excerpt(name);
    if (all > names.size()) text += " and " + std::to_string(all - names.size()) + " more";
    return text;
}

std::string ranks_text(std::uint64_t count) { return std::to_string(count) + (count == 1 ? " rank" : " ranks"); }

}  // namespace

RankNames::RankNames(std::vector<std::string> files) : files_(std::move(files)) {
    std::vector<std::size_t> order(files_.size());
    std::iota(order.begin(), order.end(), 0);
    if (auto names = parsed(files_); names && !names->empty()) {
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return (*names)[a].rank < (*names)[b].rank; });
        for (const std::size_t i : order) ranks_.push_back((*names)[i].rank);
        set_ = names->front().set;
        world_size_ = names->front().world_size;
    } else {
        ranks_.assign(order.begin(), order.end());
    }
    std::vector<std::string> sorted;
    for (const std::size_t i : order) sorted.push_back(std::move(files_[i]));
    files_ = std::move(sorted);
    for (std::size_t i = 0; i < files_.size(); ++i) {
        if (places_.emplace(ranks_[i], i).second) continue;
        throw Error(Errc::rank_repeated, "the names of two files give rank " + std::to_string(ranks_[i]) + ": " +
                                             excerpt(file(*find(ranks_[i]))) + " and " + excerpt(files_[i]));
    }
}

RankNames RankNames::alone(const std::string& file, std::optional<std::uint64_t> rank) {
    RankNames names({file});
    names.alone_ = true;
    if (!rank) return names;
    names.ranks_ = {*rank};
    names.places_ = {{*rank, 0}};
    return names;
}

std::optional<std::size_t> RankNames::find(std::uint64_t rank) const {
    const auto found = places_.find(rank);
    return found == places_.end() ? std::nullopt : std::optional(found->second);
}

std::string RankNames::name_of(std::uint64_t rank) const {
    if (const auto i = find(rank)) return files_[*i];
    std::string name = set_;
    if (name.empty()) return "the file of rank " + std::to_string(rank);
    return name.replace(name.rfind('*'), 1, std::to_string(rank));
}

std::string RankNames::missing_below(std::uint64_t end) const {
    const auto present = std::lower_bound(ranks_.begin(), ranks_.end(), end) - ranks_.begin();
    const std::uint64_t count = end - static_cast<std::uint64_t>(present);
    std::vector<std::string> missing;
    for (std::uint64_t rank = 0; missing.size() < std::min<std::uint64_t>(count, most_listed); ++rank)
        if (!places_.contains(rank)) missing.push_back(name_of(rank));
    return names_and_count(missing, count);
}

void RankNames::require_first(std::uint64_t count, const std::string& what) const {
    const std::string missing = missing_below(count);
    if (!missing.empty())
        throw Error(Errc::rank_missing, what + " has " + ranks_text(count) + "; missing are " + missing);
}

void RankNames::require_named_ranks() const {
    if (ranks_.empty() || alone_) return;
    const std::uint64_t world = world_size_.value_or(ranks_.back() + 1);
    if (ranks_.back() >= world)
        throw Error(Errc::world_mismatch, "the names of the files say that there are " + ranks_text(world) +
                                              ", but there is a file of rank " + std::to_string(ranks_.back()) + ": " +
                                              excerpt(files_.back()));
    if (files_.size() == world) return;
    throw Error(Errc::rank_missing, "missing files of " + excerpt(set_) + ": " + missing_below(world));
}

void RankNames::require_files_of(std::span<const std::uint64_t> ranks, const std::string& what) const {
    if (alone_) return;
    std::vector<std::string> missing;
    std::uint64_t count = 0;
    for (const std::uint64_t rank : ranks) {
        if (places_.contains(rank)) continue;
        if (world_size_ && rank >= *world_size_)
            throw Error(Errc::world_mismatch, what + " has rank " + std::to_string(rank) +
                                                  ", but the names of the files say that there are " +
                                                  ranks_text(*world_size_));
        if (count++ < most_listed) missing.push_back(name_of(rank));
    }
    if (count == 0) return;
    throw Error(Errc::rank_missing,
                what + " has " + ranks_text(ranks.size()) + "; missing are " + names_and_count(missing, count));
}

}  // namespace safemap::SAFEMAP_ABI::names
