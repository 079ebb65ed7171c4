// Lists what may be checkpoints in a folder, by names alone.
#pragma once

#include <safemap/api.hpp>

#include <filesystem>
#include <optional>
#include <vector>

namespace safemap::SAFEMAP_ABI::open {

/// The paths in one folder, each beginning with the path of the folder.
struct PathsIn {
    using Paths = std::vector<std::filesystem::path>;

    /// A checkpoint of several files.
    struct Whole {
        std::filesystem::path path;  ///< the folder itself, an index, or the glob of a set of rank files
        Paths files = {};            ///< the files of it that their names show; others may belong to it, too
    };
    std::vector<Whole> whole = {};  ///< some may have files of others
    Paths files = {};               ///< all files, with links to files, pipes, sockets and broken links
    Paths folders = {};             ///< without links
    bool is_cache = false;          ///< true if the folder is marked as a cache, by a CACHEDIR.TAG
};

/// Throws as open_folder() does.
PathsIn paths_in(const std::filesystem::path& folder);

/// Returns what a glob matches, sorted; nothing if the path exists, or is not a glob.
std::optional<PathsIn::Paths> matches_of(const std::filesystem::path& path);

}  // namespace safemap::SAFEMAP_ABI::open
