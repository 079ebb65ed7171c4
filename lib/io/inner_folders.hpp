// Builds the folders in a folder that is replaced once more, of hard links, so that the folder can be exchanged.
#pragma once

#include "io/system.hpp"

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// Paths begin in the folder that is replaced: "logs/today/a.txt".
struct Linked {
    struct Folder {
        std::string path;
        std::string before;  ///< the stamp of the folder that it was built after
    };
    std::vector<std::string> files;  ///< hard links, to files of any kind
    std::vector<Folder> folders;     ///< an outer folder comes before those in it
};

/// Links what stays of one folder into another one. Folders in it are made anew, with the owner, the permissions and
/// the time of modification of the old ones, which are left as they are. One that is there already, as the save's own,
/// gets what stays and nothing else.
///
/// It cannot be done where a folder is the root of a mount, the working directory, a sibling (see Sibling), not ours to
/// empty and remove later, nested deeper than 32 folders, or where there are more than 10,000 entries in all of them.
class Linking {
public:
    /// `folder` is open and is what is replaced; messages call it `path`.
    Linking(int folder, std::string path);

    /// Returns whether the folders in it can be built again, as far as can be told before it is done.
    bool is_possible() const;
    /// Links into the open folder `to` whatever is not called as one of `goes`, and adds what it has made to `made`,
    /// also if it fails. What vanishes meanwhile is left out; what comes up meanwhile may be. Returns false where it
    /// cannot be done. Throws where it might be done another time.
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
    struct stat working_ = {};  ///< the working directory
};

}  // namespace safemap::SAFEMAP_ABI::io
