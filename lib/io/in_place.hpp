// The commit in place, into a folder that cannot be exchanged as a whole: file by file, under the commit list, which is
// on the disk before the first step.
#pragma once

#include <safemap/api.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

struct PendingSave;

/// Replaces a folder in place. After an error past the commit list, the new content counts, and a hint says so.
void commit_in_place(PendingSave& save);

/// The steps that finish a save. The list is a file in the sibling inside the folder: `.safemap-tmp/commit`. As soon as
/// the list exists, the new content counts: readers look for a listed file in the sibling's content first (see
/// open_folder()), and the next save finishes the commit of a process that died.
struct CommitList {
    struct Entry {
        std::string name;         ///< a file of the folder, or a relative path through inner folders
        std::string before = {};  ///< stamp of the old file or folder (see note.hpp); empty if there was none

        friend bool operator==(const Entry&, const Entry&) = default;
    };
    std::vector<Entry> files;    ///< to move from the content into the folder; the file that names the others is last
    std::vector<Entry> removed;  ///< files of the folder to remove after that, in this order
    bool inodes_last = true;     ///< false if the inodes in the stamps are to be ignored (see note.hpp)

    friend bool operator==(const CommitList&, const CommitList&) = default;
};

/// The path of the new content, relative to the folder.
inline constexpr const char* staged_content = ".safemap-tmp/content";

inline constexpr const char* commit_list_name = "commit";
inline constexpr const char* new_list_name = "commit.new";

/// Writes a list for the open `folder` into the open `sibling`. Flushes it to the disk if `durable`. Every user that
/// may read the folder may read the list.
void write_commit_list(int sibling, int folder, std::span<const std::string> files,
                       std::span<const std::string> removed, bool durable = true);
/// Reads the list in the sibling inside the open `folder`; returns nothing if there is no list. Throws
/// commit_list_damaged in three cases: a name leads out of the folder; a file is missing from both the content and the
/// folder; the files to replace or remove have changed since the list was written, so carrying the list out would
/// destroy the changes.
std::optional<CommitList> read_commit_list(int folder);
/// Carries out the list in `folder`, if there is one, and removes it. An interrupted call can be repeated, wherever it
/// was interrupted. Until it is done, readers that do not know commit lists see files of both models. If the two models
/// share no name, such readers see the old model until the last of `files` is moved, then the new one. If not
/// `durable`, the kernel decides when the changes reach the disk.
void finish_commit(int folder, bool durable = true);

}  // namespace safemap::SAFEMAP_ABI::io
