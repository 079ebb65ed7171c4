// The files of a set by the ranks that their names give, and messages about ranks that are missing.
#pragma once

#include "names/file_names.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace safemap::SAFEMAP_ABI::names {

/// The files of ranks that differ in the number of the rank alone.
struct RankSet {
    RankedName name;                                         ///< the name of one of them
    std::multimap<std::uint64_t, std::string> by_rank = {};  ///< "rank_1.pt" and "rank_01.pt" are of one rank

    FileNames files() const;
};
/// Returns the sets of rank files among these names, by their globs.
std::map<std::string, RankSet> rank_sets(const FileNames& names);
/// Returns the world size in the file's name. Without one, returns the number of `files` in its set.
std::uint64_t ranks_in_set(const RankedName& one, const FileNames& files);

/// The names of missing files, for one message.
class MissingNames {
public:
    static constexpr std::size_t most = 64;

    /// The message gives so many names.
    explicit MissingNames(std::size_t named = most) : named_(named) {}

    void add(std::string name);
    void add_unnamed(std::uint64_t count) { count_ += count; }
    std::uint64_t count() const noexcept { return count_; }
    /// Returns true if the message names no more of them.
    bool is_full() const noexcept { return names_.size() == named_; }
    /// Returns "a, b and 3 more", with an excerpt() of each name.
    std::string text() const;

private:
    std::size_t named_;
    std::vector<std::string> names_ = {};
    std::uint64_t count_ = 0;
};

/// The files of one set, in the order of their ranks. Immutable.
class RankNames {
public:
    /// `files` are names in one folder. If they do not give ranks, or several sets, a file's rank is its place in the
    /// list. Throws rank_repeated if two names give one rank, such as "rank_1.pt" and "rank_01.pt".
    explicit RankNames(std::vector<std::string> files);
    /// Returns the same files as if their names did not say how many ranks there are.
    RankNames without_world_size() const {
        RankNames names = *this;
        names.world_size_.reset();
        return names;
    }

    /// Returns one file by itself: no file of another rank is missing. Its rank is `rank`; if that is not given, the
    /// one in the name, or else 0.
    static RankNames alone(const std::string& file, std::optional<std::uint64_t> rank = {});

    std::size_t size() const noexcept { return files_.size(); }
    const std::vector<std::string>& files() const noexcept { return files_; }
    const std::string& file(std::size_t i) const noexcept { return files_[i]; }
    std::uint64_t rank(std::size_t i) const noexcept { return ranks_[i]; }
    /// Returns the number of ranks that the names give, if they do.
    std::optional<std::uint64_t> world_size() const noexcept { return world_size_; }
    /// Returns the place of a rank's file in the list, or nothing if there is no such file.
    std::optional<std::size_t> find(std::uint64_t rank) const;
    /// Returns the name that the file of a rank would have.
    std::string name_of(std::uint64_t rank) const;

    /// Throws world_mismatch if there is a rank that the world size in the names does not allow; rank_missing, with the
    /// first names, if there are fewer files than that. Without a world size, no rank below the highest may be missing.
    void require_named_ranks() const;
    /// Throws rank_missing, with the first names, if there are no files of ranks 0 to `count` - 1. `what` begins the
    /// message: "the manifest".
    void require_first(std::uint64_t count, const std::string& what) const;
    /// Throws if a mesh or group of ranks has ranks without a file: world_mismatch if the names give a world size that
    /// does not allow one of them, otherwise rank_missing, with the first names. `what` begins the message: "the mesh".
    void require_files_of(std::span<const std::uint64_t> ranks, const std::string& what) const;

private:
    /// Returns the first names of ranks below `end` that have no file; an empty text if all have one.
    std::string missing_below(std::uint64_t end) const;

    std::vector<std::string> files_;
    std::vector<std::uint64_t> ranks_ = {};
    std::unordered_map<std::uint64_t, std::size_t> places_ = {};
    std::optional<std::uint64_t> world_size_ = {};
    bool alone_ = false;
    std::string set_ = {};  ///< the glob of all files; empty if the names give no ranks
};

}  // namespace safemap::SAFEMAP_ABI::names
