// The hidden folder in which a save is prepared. Its writer locks it; if the writer dies, the next save removes it.
#pragma once

#include "io/system.hpp"

#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// A hidden folder beside the target, called `.NAME.safemap-tmp`, or inside a folder that is replaced in place, called
/// `.safemap-tmp`. It has a lock file, held by flock while this object lives; the new content; and notes about the
/// save.
///
/// A sibling whose lock is not held was left by a dead process. A folder without a lock file, unless empty, is not ours
/// and stays. Exception: it looks like a sibling that lost its lock file in a power failure; see has_lost_lock().
class HiddenSibling {
public:
    static constexpr const char* suffix = ".safemap-tmp";
    static constexpr const char* content = "content";

    HiddenSibling() = default;
    /// Creates `name` in the open folder `home`, which must stay open. First removes what a dead writer left there; see
    /// clear_content() for `notes`. If `durable`, the lock file is on the disk before anything else is created. Throws
    /// busy; already_exists if something else has the name.
    static HiddenSibling claim(int home, const std::string& name, std::vector<std::string>& notes, bool durable = true);
    /// Takes the sibling of a dead writer with all its content; returns an empty object if nothing is there. Finishes a
    /// commit that the writer had begun (see in_place.hpp). Throws as claim() does.
    static HiddenSibling recover_abandoned(int home, const std::string& name);
    /// Removes the sibling of a dead writer, if there is one.
    static void clear(int home, const std::string& name, std::vector<std::string>& notes);
    /// Removes the sibling with all its content, as far as possible.
    ~HiddenSibling() { discard(); }
    HiddenSibling(HiddenSibling&& other) noexcept;
    HiddenSibling& operator=(HiddenSibling&& other) noexcept;

    explicit operator bool() const noexcept { return static_cast<bool>(folder_); }
    int folder() const noexcept { return folder_.number(); }

    /// Gives the owner of a new file or folder in the open `folder` the permissions that a save needs: to write into
    /// folders, and to open files again. A umask may have denied them.
    void grant(int folder, const char* name);
    /// Returns the permissions that the umask denies the owner: 0, or some of S_IRWXU.
    mode_t denied() const noexcept { return denied_; }

    /// Moves the sibling, with its lock, into another folder of the same file system. Returns the error number, 0 for
    /// success.
    int move(int home, const std::string& name);
    /// Removes the content: a file, or a folder with its files. See clear_content().
    void remove_content(std::vector<std::string>& notes) const;
    /// Removes the notes. Call it after remove_content(): the notes say what in the content may be removed.
    void remove_notes() const;
    /// Removes what showed other processes that they see the same sibling.
    void remove_token() const;
    /// Removes one file of the sibling, if it exists.
    void remove_file(const char* name) const;
    /// Removes the sibling when only the lock file is left in it. The lock file is closed before the folder is removed:
    /// on NFS, a file that is removed while open stays under another name. Another writer may take the place after
    /// this.
    void remove();
    /// Leaves everything to the next writer.
    void abandon() noexcept;

private:
    HiddenSibling(int home, std::string name) : home_(home), name_(std::move(name)) {}
    bool create(bool durable);
    void discard() noexcept;

    int home_ = -1;
    std::string name_;
    Descriptor folder_;
    Descriptor lock_;  ///< the lock file in it
    mode_t denied_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::io
