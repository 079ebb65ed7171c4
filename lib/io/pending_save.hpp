// A save that is being prepared: its target, the hidden sibling with its files, and what is ours in both. Also the
// files of a sibling that another process has made, on this machine or another.
#pragma once

#include "io/hidden_sibling.hpp"
#include "io/inner_folders.hpp"
#include "io/journal.hpp"
#include "io/output.hpp"
#include "io/system.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// The treatment of a file or folder that already is at the target.
enum class Existing : std::uint8_t {
    refuse,   ///< error; it stays unchanged
    replace,  ///< replaced when the new one is complete
    merge,    ///< folder whose files all stay; error if a new name is taken at the commit
};

/// The place that a save goes to. All paths are relative to the open folder around it: if that folder is renamed during
/// a save, the checkpoint moves with it and is not torn.
struct Place {
    /// Follows a link to a folder if `follow`.
    Place(const std::filesystem::path& path, bool follow);
    /// Throws already_exists if anything is there.
    void require_absent() const;
    /// Returns true if something has the name, with its status.
    bool status(struct stat& found) const;

    std::string target;  ///< path for messages
    std::string name;    ///< in its folder
    Descriptor parent;
};

/// Files that are written into a sibling, by the process that has made it or by another one.
struct SiblingFiles {
    enum class Kind : std::uint8_t { file, folder };

    bool is_folder() const noexcept { return kind == Kind::folder; }
    /// Returns the name of a file in `home`. A single file is the content itself.
    const char* name_in_folder(const std::string& name) const noexcept;
    /// Returns the final path of the file, for messages.
    std::string path_of(const std::string& name) const;
    /// Opens a file again that was added and closed.
    OutputFile reopen(const std::string& name) const;

    Kind kind;
    bool durable;
    std::string target = {};  ///< its path, for messages
    int home = -1;            ///< the open folder that files are created in
};

/// The files that are ours in the content and in the target. All else belongs to other programs, and stays.
struct Ours {
    std::vector<std::string> files = {};    ///< new files, in the order in which they were added
    std::vector<std::string> folders = {};  ///< inner folders of these files
    std::vector<std::string> old = {};      ///< files of the target that go
    Linked linked = {};                     ///< links in the content to files of the target that stay

    /// Returns the files of the target that are replaced or removed.
    std::set<std::string_view> replaced() const;
    /// Returns true if the open content has new files and folders of ours, and nothing else.
    bool is_all_of(int content, const std::string& path) const;
};

/// A save that is being prepared: the state of a Staging.
struct PendingSave : SiblingFiles {
    enum class State : std::uint8_t {
        preparing,
        published,  ///< a dead process has put the content at the target
        kept,       ///< the save has ended, and the next one resumes it
        appeared,   ///< content is at the target, which was free
        exchanged,  ///< content is at the target, old target in the sibling
        committed,
    };

    /// Flushes a folder to the disk if the save is durable.
    void sync(int folder) const {
        if (durable) sync_folder(folder);
    }
    /// Flushes the new folder and its inner folders. All of them are complete before the first flush, so that one takes
    /// most of the others along.
    void sync_content() const;
    /// Removes the sibling after the commit. The next save removes what cannot be removed now.
    void clear_sibling();

    Place place;
    std::string job = {};  ///< names the save in its journal; empty: cannot be resumed
    bool resume = false;   ///< continue what a dead process left of this job

    bool replaces = false;                ///< something is at the target
    std::optional<mode_t> old_mode = {};  ///< its mode
    std::string old_identity = {};        ///< its identity
    std::string new_identity = {};        ///< identity of the content, if there is no target
    Descriptor old = {};                  ///< the target, if it is a folder; locked
    bool inside = false;                  ///< the sibling is inside the target
    HiddenSibling sibling = {};
    Descriptor content = {};  ///< for a folder: the future target, in the sibling
    Journal journal = {};
    std::set<std::string, std::less<>> finished = {};  ///< files; by a dead process, and then by this one
    Ours ours = {};
    std::vector<std::string> notes = {};
    State state = State::preparing;
};

/// Returns device and inode; for a file also size and time.
std::string text_of_whole(const struct stat& status);
/// Returns the same of a name in an open folder; an empty text if nothing has the name.
std::string identity_at(int folder, const char* name);

/// Gives the new files and inner folders an owner and permissions, in order of preference:
/// 1. of the file or folder that they replace
/// 2. of the first file of the old model, in a folder that is replaced; inner folders, of the target
/// 3. as the umask wanted: takes back what HiddenSibling::grant() added
void set_permissions(const PendingSave& save);
/// Lets every user that may read the replaced folder read the new content, from the moment it counts.
void open_to_readers(const PendingSave& save);
/// Sets the permissions of the folder itself. Last, because they may forbid moving it.
void set_final_mode(const PendingSave& save);

// Name of the file in a sibling that shows other processes that they see the same sibling.
inline constexpr const char* token_name = "token";
inline constexpr const char* new_token_name = "token.new";

/// Returns a text that no other call returns, in any process.
std::string new_token();
/// Puts the token into the open `sibling`.
void put_token(int sibling, const std::string& token, bool durable);

/// The files of a sibling that another process has made. Holds their folder open, so that files of another save that
/// comes later are never written to.
struct JoinedSibling : SiblingFiles {
    /// Finds the sibling of `target` and compares its token. `key` is what Staging::open_to_others() returned in the
    /// other process. Network file systems may show a new file late, so it looks for a few seconds. Throws
    /// invalid_argument if the target is not the one of the other process, and what opening throws.
    JoinedSibling(const std::filesystem::path& target, Kind kind, Existing existing, const std::string& key,
                  bool durable);

    Descriptor files;  ///< their folder
};

}  // namespace safemap::SAFEMAP_ABI::io
