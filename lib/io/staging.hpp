// Saves a new file or folder, or replaces an old one. Other processes see all of it or nothing, whatever happens
// meanwhile.
#pragma once

#include "io/pending_save.hpp"

#include <cstddef>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// Throws already_exists if anything is at `target`, even a dangling link; path_not_found if the folder around it does
/// not exist.
void require_absent(const std::filesystem::path& target);

/// How a save is resumed, and what it guarantees.
struct StagingOptions {
    std::string id = {};  ///< as in Journal; empty: cannot be resumed
    bool resume = false;  ///< continue what a dead process left of this job; otherwise that is removed
    /// The required identity of a file that is replaced, from Source::identity(). Empty: any.
    std::string replaced = {};
    /// If true, everything is on the disk before it counts. If false, the kernel writes later: a power failure, and
    /// nothing else, may lose a committed save; a save can be resumed only until the next boot.
    bool durable = true;
};

/// A new file or folder that is filled in a hidden sibling of the target (see HiddenSibling) and then takes the
/// target's place.
///
/// A replaced folder keeps its permissions and every file that is neither new nor listed as old. A new file gets the
/// permissions of the file that it replaces. A folder is replaced in one of two ways:
/// - by exchange: the sibling is beside the folder. It gets hard links to the files that stay, in rebuilt inner
///   folders; then one rename exchanges the two. At every moment the path leads to the old folder or to the new one. A
///   list on the disk says what is exchanged (see exchange.hpp).
/// - in place, if the inner folders cannot be rebuilt (see Linking), the folder is the root of a mount or the working
///   directory, the folder around it is not writable, or the file system has no hard links or no exchange. The sibling
///   is inside the folder; a commit list on the disk says what to do, then that is done (see in_place.hpp).
class Staging {
public:
    using Kind = SiblingFiles::Kind;

    /// Locks the place and prepares the sibling. Follows a link to a folder; a link to a file is itself replaced.
    ///
    /// If the job is resumed and a dead process has put all of it at the target, but has not removed the sibling, that
    /// content is taken: all its files can be adopted, nothing can be added, and commit() removes the sibling.
    ///
    /// Throws as require_absent() does; busy; already_exists if the sibling's name is taken by something else, or if
    /// the target is not of this kind; permission_denied.
    Staging(const std::filesystem::path& target, Kind kind, Existing existing = Existing::refuse,
            StagingOptions job = {});
    /// Removes what was not committed, unless keep_finished() has kept it.
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    /// Returns true if a dead process has finished this file; the file is then part of this save. Call it in the order
    /// of the files, before add().
    bool adopt(const std::string& name);
    /// Records that a file is finished and will not change. May be called from several threads.
    void finished(const std::string& name);
    /// Creates an inner folder, for files called "NAME/…". Call it before these files are adopted or added. The new
    /// folder is merged with the replaced folder of that name: its files stay, except those that are new or listed as
    /// old. Throws already_exists if something else has the name.
    void add_folder(const std::string& name);
    /// Creates a new file in the folder. For Kind::file: creates the file itself, and ignores `name`.
    OutputFile add(const std::string& name);
    /// The files that were added, to be opened again.
    const SiblingFiles& files() const noexcept { return save_; }
    OutputFile reopen(const std::string& name) const { return save_.reopen(name); }
    std::string path_of(const std::string& name) const { return save_.path_of(name); }

    /// Lets other processes write into the files that were added: they make a JoinedSibling of the text that this
    /// returns. Until commit(), the sibling has a file by which they know it.
    std::string open_to_others();
    /// Records that another process has finished a file, which was added here.
    void finished_by_other(const std::string& name) { finished(name); }

    /// Ends the save before commit(), as if the process had been killed: leaves the finished files to a save that
    /// resumes this one, and removes all others. Returns the number of finished files. Does nothing and returns 0 if no
    /// file is finished, or if this job cannot be resumed. No other member may be called afterwards.
    std::size_t keep_finished() noexcept;

    /// Puts everything in place at the target. If the job is durable, all is on the disk when this returns. In a
    /// replaced folder, the files in `old_files` are gone then. All files must be finished; the file that was added
    /// last is the one that names the others. Throws already_exists if something has appeared at the target meanwhile.
    ///
    /// After an error the target is unchanged, with one exception: if a folder is replaced in place and a step after
    /// the commit list fails, the new content counts, and a hint says so.
    void commit(std::span<const std::string> old_files = {});
    /// Returns sentences about what could not be removed, and about files that were renamed.
    const std::vector<std::string>& notes() const noexcept { return save_.notes; }

private:
    void examine_old(const std::string& replaced);
    void lock_old() const;
    void create_content();
    void require_free() const;

    PendingSave save_;
    bool merges_;             ///< the folder must not have any of the new files
    bool has_token_ = false;  ///< the sibling has a token
    std::mutex journaling_;
};

}  // namespace safemap::SAFEMAP_ABI::io
