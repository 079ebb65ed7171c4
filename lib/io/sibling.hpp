// The hidden folder in which a save is prepared: locked by its writer, and cleared away when that is dead.
#pragma once

#include "io/system.hpp"

#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

/// Beside a target it is called `.NAME.safemap-tmp`, in a folder that is replaced piece by piece `.safemap-tmp`. In it
/// are a lock file, held under flock for as long as this object lives; the new content; and what is known of the save.
/// A sibling whose lock nobody holds is what a dead process left. What has no lock file in it, and is not empty, is not
/// ours and stays, unless it is in every other respect what a power failure leaves of one: see has_lost_lock().
class Sibling {
public:
    static constexpr const char* suffix = ".safemap-tmp";
    static constexpr const char* content = "content";

    Sibling() = default;
    /// Creates `name` in the folder open as `home`, which has to stay open. What a dead writer left there is cleared
    /// away first; see clear_content() for what `notes` gets. Throws busy, and already_exists where something else has
    /// that name. If it is `durable`, its lock is on the disk before anything else is in it.
    static Sibling claim(int home, const std::string& name, std::vector<std::string>& notes, bool durable = true);
    /// What a dead writer left there, with all that is in it; none where there is nothing. A commit that it had begun
    /// (see commit_list.hpp) is finished. Throws as claim() does.
    static Sibling take_over(int home, const std::string& name);
    /// Removes what a dead writer left there, if there is anything.
    static void clear(int home, const std::string& name, std::vector<std::string>& notes);
    /// Removes it with all that is in it, as far as that is possible.
    ~Sibling() { discard(); }
    Sibling(Sibling&& other) noexcept;
    Sibling& operator=(Sibling&& other) noexcept;

    explicit operator bool() const noexcept { return static_cast<bool>(folder_); }
    int folder() const noexcept { return folder_.number(); }

    /// A umask may take from the owner what a save needs: to write into the folders, and to open files again. This
    /// gives it back to a file or folder that was created in the open `folder`.
    void grant(int folder, const char* name);
    /// What the umask denies the owner: 0, or some of S_IRWXU.
    mode_t denied() const noexcept { return denied_; }

    /// Moves it, lock and all, into another folder of the same file system; the error number where that fails.
    int move(int home, const std::string& name);
    /// Removes the content: a file, or a folder with the files in it. See clear_content().
    void remove_content(std::vector<std::string>& notes) const;
    /// Removes what is known of the save. Last, because it says what in the content may be removed.
    void remove_notes() const;
    /// Removes a file in it, if it is there.
    void remove_file(const char* name) const;
    /// Removes it when only the lock is left in it. The lock is closed before the folder goes: on NFS, what is removed
    /// while it is open stays under another name. From then on another writer may have the place.
    void remove();
    /// Leaves everything for the next writer.
    void abandon() noexcept;

private:
    Sibling(int home, std::string name) : home_(home), name_(std::move(name)) {}
    bool create(bool durable);
    void discard() noexcept;

    int home_ = -1;
    std::string name_;
    Descriptor folder_;
    Descriptor lock_;  ///< in it
    mode_t denied_ = 0;
};

}  // namespace safemap::SAFEMAP_ABI::io
