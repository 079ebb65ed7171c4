// What a save into a folder that cannot be exchanged as a whole still has to do, on the disk before it begins with it.
#pragma once

#include <safemap/api.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// The list stands in the sibling inside the folder (`.safemap-tmp/commit`). From the moment it is there the new
/// content counts: readers look for a file of the list in the sibling's content first (see open_folder()), and the next
/// save carries out what a dead one left undone.
struct CommitList {
    struct Entry {
        std::string name;         ///< a file, or the path of one in a folder
        std::string before = {};  ///< the stamp of what stood in the folder then (see stamp.hpp); empty for nothing

        friend bool operator==(const Entry&, const Entry&) = default;
    };
    std::vector<Entry> files;    ///< to be moved from the content into the folder; what names the others is last
    std::vector<Entry> removed;  ///< files of the folder that go then, in this order
    bool inodes_last = true;     ///< false where the inodes in the stamps are to be passed over (see stamp.hpp)

    friend bool operator==(const CommitList&, const CommitList&) = default;
};

/// Where the content stands, in the folder.
inline constexpr const char* staged_content = ".safemap-tmp/content";

inline constexpr const char* commit_list_name = "commit";
inline constexpr const char* new_list_name = "commit.new";

/// Puts a list for the open `folder` into the sibling open as `sibling`, and on the disk if it is `durable`, for those
/// to read who may read the folder.
void write_commit_list(int sibling, int folder, std::span<const std::string> files,
                       std::span<const std::string> removed, bool durable = true);
/// The list in the sibling inside the folder open as `folder`, if there is one. Throws commit_list_damaged: for names
/// that lead out of the folder, where a file is nowhere, and where somebody has written to the folder since, so that
/// what the list would do to it is not what was meant.
std::optional<CommitList> read_commit_list(int folder);
/// Carries out the list in `folder`, if there is one, and removes it. May be repeated after it was interrupted
/// anywhere. Readers that know nothing of lists see files of both models meanwhile; where no name is in both, they see
/// the old one until the last of `files` is moved, and then the new. If it is not `durable`, when what is done comes to
/// the disk is left to the kernel.
void finish_commit(int folder, bool durable = true);

}  // namespace safemap::SAFEMAP_ABI::io
