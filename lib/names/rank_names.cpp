// Sorts files by rank. Tested by tests/names/rank_names_test.cpp.
#include "names/rank_names.hpp"

#include "base/text.hpp"

#include <safemap/error.hpp>

#include <algorithm>
#include <utility>

namespace safemap::SAFEMAP_ABI::names {

namespace {

std::string ranks_text(std::uint64_t count) { return std::to_string(count) + (count == 1 ? " rank" : " ranks"); }

}  // namespace

FileNames RankSet::files() const {
    FileNames files;
    for (const auto& one : by_rank) files.push_back(one.second);
    return files;
}

std::map<std::string, RankSet> rank_sets(const FileNames& names) {
    std::map<std::string, RankSet> sets;
    for (const std::string& file : names)
        if (const auto name = rank_file(file))
            sets.try_emplace(name->set, RankSet{.name = *name}).first->second.by_rank.emplace(name->rank, file);
    return sets;
}

std::uint64_t ranks_in_set(const RankedName& one, const FileNames& files) {
    return one.world_size ? *one.world_size : rank_sets(files)[one.set].by_rank.size();
}

void MissingNames::add(std::string name) {
    if (!is_full()) names_.push_back(std::move(name));
    ++count_;
}

std::string MissingNames::text() const {
    std::string text;
    for (const std::string& name : names_) text += (text.empty() ? "" : ", ") + excerpt(name);
    return count_ > names_.size() ? text + " and " + std::to_string(count_ - names_.size()) + " more" : text;
}

RankNames::RankNames(std::vector<std::string> files) : files_(std::move(files)) {
    const std::map<std::string, RankSet> sets = rank_sets(files_);
    if (sets.size() == 1 && sets.begin()->second.by_rank.size() == files_.size()) {
        const RankSet& set = sets.begin()->second;
        set_ = set.name.set;
        world_size_ = set.name.world_size;
        for (const auto& one : set.by_rank) ranks_.push_back(one.first);
        files_ = set.files();
    } else {
        for (std::size_t i = 0; i < files_.size(); ++i) ranks_.push_back(i);
    }
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
    return set_.empty() ? "the file of rank " + std::to_string(rank) : file_in_set(set_, rank);
}

std::string RankNames::missing_below(std::uint64_t end) const {
    const auto present = std::lower_bound(ranks_.begin(), ranks_.end(), end) - ranks_.begin();
    const std::uint64_t count = end - static_cast<std::uint64_t>(present);
    MissingNames missing;
    for (std::uint64_t rank = 0; missing.count() < std::min<std::uint64_t>(count, MissingNames::most); ++rank)
        if (!places_.contains(rank)) missing.add(name_of(rank));
    missing.add_unnamed(count - missing.count());
    return missing.text();
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
    MissingNames missing;
    for (const std::uint64_t rank : ranks) {
        if (places_.contains(rank)) continue;
        if (world_size_ && rank >= *world_size_)
            throw Error(Errc::world_mismatch, what + " has rank " + std::to_string(rank) +
                                                  ", but the names of the files say that there are " +
                                                  ranks_text(*world_size_));
        missing.add(name_of(rank));
    }
    if (missing.count() == 0) return;
    throw Error(Errc::rank_missing, what + " has " + ranks_text(ranks.size()) + "; missing are " + missing.text());
}

}  // namespace safemap::SAFEMAP_ABI::names
