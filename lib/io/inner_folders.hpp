// Rebuilds the inner folders of a replaced folder from hard links, so that the outer folder can be exchanged.
#pragma once

#include "io/system.hpp"

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// The links and folders that were made. Paths are relative to the replaced folder: "logs/today/a.txt".
struct Linked {
    struct Folder {
        std::string path;
        std::string before;  ///< stamp of the old folder that this one copies
    };
    std::vector<std::string> files;  ///< hard links to files of any kind
    std::vector<Folder> folders;     ///< an outer folder comes before its inner folders
};

/// Links the files that stay from one folder into another. Inner folders are created, with owner, permissions and
/// modification time of the old ones; the old ones do not change. An inner folder that the save itself has created gets
/// the links and keeps its own attributes.
/// Linking is impossible in these cases:
/// - an inner folder is the root of a mount, the working directory, or a sibling (see HiddenSibling)
/// - an inner folder is not ours to empty and remove later
/// - folders are nested deeper than 32
/// - the inner folders have more than 10,000 entries in total
class Linking {
public:
    /// Takes the open `folder` that will be replaced. Messages call it `path`.
    Linking(int folder, std::string path);

    /// Returns true if the inner folders can be rebuilt, as far as can be known beforehand.
    bool is_possible() const;
    /// Links everything except the paths in `goes` into the open folder `to`. Appends what it made to `made`, also if
    /// it fails. Skips files that vanish meanwhile; may miss files that appear meanwhile. Returns false if linking is
    /// impossible. Throws if a later attempt may succeed.
    bool run(int to, const std::set<std::string_view>& goes, Linked& made) const;

private:
    struct Run;
    bool suits(int folder, std::size_t depth) const;
    bool survey(int folder, std::size_t depth, std::size_t path, std::size_t& entries) const;
    bool link_folder(int from_home, int to_home, const std::string& name, const std::string& path, std::size_t depth,
                     Run& run) const;
    bool fill(int from, int to, const std::string& prefix, std::size_t depth, Run& run) const;

    int folder_;
    std::string path_;
    struct stat status_ = {};
    struct stat working_ = {};  ///< status of the working directory
};

}  // namespace safemap::SAFEMAP_ABI::io
