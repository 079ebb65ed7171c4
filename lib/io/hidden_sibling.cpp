// Life of a sibling: create the folder, the lock file, then the content; remove the content, the lock file, then the
// folder. So whenever a writer dies, its sibling is empty or has a lock file. This distinguishes it from other folders.
//   1. Tests of a folder found in its place: is_lock(), is_ours(), is_our_content(), is_our_note(), has_lost_lock().
//   2. lock_of_dead() locks the sibling of a dead writer, or says why it cannot.
//   3. claim() makes a sibling and first removes one of a dead writer; create() is one attempt.
//   4. recover_abandoned() takes the sibling of a dead writer and finishes its commit.
//   5. The end of a sibling, one of three:
//        - remove(): orderly, when only the lock file is left
//        - abandon(): leaves everything to the next writer
//        - discard(): removes what it can, ignores errors
#include "io/hidden_sibling.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/exchange.hpp"
#include "io/in_place.hpp"
#include "io/journal.hpp"
#include "io/listing.hpp"
#include "io/note.hpp"
#include "io/output.hpp"
#include "io/pending_save.hpp"
#include "io/recovery.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr const char* lock_name = "safemap.lock";
constexpr int most_attempts = 100;  // while other processes keep creating and removing the sibling

enum class Lock { held, taken, unsupported };

Lock try_lock(int descriptor) {
    if (uninterrupted([&] { return calls.flock(descriptor, LOCK_EX | LOCK_NB); }) == 0) return Lock::held;
    if (errno == EWOULDBLOCK) return Lock::taken;
    // Some network file systems have no locks.
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENOLCK || errno == EINVAL || errno == EBADF)
        return Lock::unsupported;
    throw system_error(errno, "lock it");
}

/// Returns true if the open file is an empty regular file, as the lock file is.
bool is_lock(int descriptor) {
    const struct stat status = examine(descriptor, "the lock");
    return S_ISREG(status.st_mode) && status.st_size == 0;
}

/// Returns true if the open lock file is still the one in the sibling. Before we locked it, its former owner, or a
/// process that took it for stale, may have removed it.
bool still_there(int lock, int sibling) {
    const struct stat open = examine(lock, "the lock");
    struct stat named = {};
    if (calls.fstatat(sibling, lock_name, &named, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return false;
        throw system_error(errno, "examine the lock");
    }
    return same_inode(open, named);
}

/// Names of the notes in a sibling.
constexpr std::array note_names = {journal_name,       new_journal_name,       commit_list_name, new_list_name,
                                   exchange_list_name, new_exchange_list_name, token_name,       new_token_name};

bool is_known(const std::string& name) {
    return name == lock_name || name == HiddenSibling::content ||
           std::any_of(note_names.begin(), note_names.end(), [&](const char* note) { return name == note; });
}

/// Returns true if a folder with these names is a sibling: it has only our names and a lock file, or is empty.
bool is_ours(const std::vector<std::string>& names) {
    const bool locked = std::find(names.begin(), names.end(), lock_name) != names.end();
    return std::all_of(names.begin(), names.end(), is_known) && (locked || names.empty());
}

/// Returns true if the content of the sibling looks like a save's: missing, a file with one link, or a folder without
/// inner folders; owned by this user.
bool is_our_content(int sibling) {
    struct stat status = {};
    if (calls.fstatat(sibling, HiddenSibling::content, &status, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT;
    if (status.st_uid != ::geteuid()) return false;
    if (S_ISREG(status.st_mode)) return status.st_nlink == 1;
    if (!S_ISDIR(status.st_mode)) return false;
    const Descriptor inside = open_at(sibling, HiddenSibling::content, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    return inside && list_inner_folders(inside.number(), HiddenSibling::content).empty();
}

/// Returns true if a note is ours: its text says so, or it is empty after a power failure. A commit list decides where
/// files go, so an empty one does not count.
bool is_our_note(int sibling, const std::string& name) {
    const Descriptor note = open_at(sibling, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!note) return false;
    struct stat status = {};
    if (calls.fstat(note.number(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
    if (status.st_size == 0) return name != commit_list_name;
    return read_note(note.number(), name).starts_with("safemap " + name + ' ');
}

/// Returns true if a folder without a lock file is a sibling that lost it in a power failure. All of this must hold:
/// - it has only names of ours, and its finished notes say that they are ours
/// - it belongs to this user
/// - it is being committed in place, or it has content as a save makes it and only this user may look into it
/// Current versions flush the lock file to the disk before they create anything else.
bool has_lost_lock(int sibling, const std::vector<std::string>& names) {
    struct stat status = {};
    if (calls.fstat(sibling, &status) != 0 || status.st_uid != ::geteuid()) return false;
    bool committed = false;
    for (const std::string& name : names) {
        if (name == lock_name || !is_known(name)) return false;
        if (name == HiddenSibling::content || name.ends_with(".new")) continue;
        if (!is_our_note(sibling, name)) return false;
        committed = committed || name == commit_list_name;
    }
    // finish_commit() rejects a commit list that is damaged.
    return committed || ((status.st_mode & 0777) == S_IRWXU && is_our_content(sibling));
}

/// Returns a hint for a file system that cannot tell whether the writer is alive. The sibling may have the only copy of
/// some files.
const char* unlocked_hint(int sibling) {
    struct stat status = {};
    const bool counts = calls.fstatat(sibling, commit_list_name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    return counts
               ? "if no process is saving here, the folder has a new checkpoint that is only partly in place; safemap "
                 "reads it: convert it to another folder and use that"
               : "if no process is saving here, move it elsewhere";
}

Error busy() { return Error(Errc::busy, "another process is saving to it"); }

Error foreign(const std::string& name) {
    Error error(Errc::already_exists,
                safemap::quoted(name) + " exists, is not from a save, and has the name that this save needs");
    return error.with_hint("move it elsewhere, or save under another name");
}

Error not_created(int number, const std::string& name) {
    Error error = system_error(number, "create " + safemap::quoted(name));
    if (error.code() == Errc::permission_denied)
        error.with_hint(number == EROFS ? "the file system is read-only: save to another one"
                                        : "the folder is not writable: save to another one, or change its permissions");
    return error;
}

Error failed(int number, const char* doing, const std::string& name) {
    return system_error(number, std::string(doing) + ' ' + safemap::quoted(name));
}

/// Takes the lock of a sibling whose writer has died. Returns nothing if another process has it, or if it is gone.
Descriptor lock_of_dead(int folder, const std::string& name) {
    const auto names = list_all(folder, name);
    const bool no_lock = !is_ours(names);
    if (no_lock && !has_lost_lock(folder, names)) throw foreign(name);
    if (names.empty()) return {};
    const int how = no_lock ? O_CREAT | O_EXCL : O_NONBLOCK;
    Descriptor lock = open_at(folder, lock_name, O_RDWR | O_NOFOLLOW | how, S_IRUSR | S_IWUSR);
    if (!lock) {
        if (errno == ENOENT || errno == EEXIST) return {};  // created or removed while the folder was listed
        if (errno == ELOOP || errno == EISDIR || errno == ENXIO) throw foreign(name);
        throw failed(errno, "open the lock in", name);
    }
    if (!is_lock(lock.number())) throw foreign(name);
    const Lock state = try_lock(lock.number());
    if (state == Lock::taken) throw busy();
    if (state == Lock::unsupported)
        throw Error(Errc::busy,
                    safemap::quoted(name) +
                        " exists, and this file system has no locks, so it is unknown if its writer is still running")
            .with_hint(unlocked_hint(folder));
    return still_there(lock.number(), folder) ? std::move(lock) : Descriptor();
}

}  // namespace

HiddenSibling::HiddenSibling(HiddenSibling&& other) noexcept { *this = std::move(other); }

HiddenSibling& HiddenSibling::operator=(HiddenSibling&& other) noexcept {
    std::swap(home_, other.home_);
    std::swap(name_, other.name_);
    std::swap(folder_, other.folder_);
    std::swap(lock_, other.lock_);
    std::swap(denied_, other.denied_);
    return *this;
}

HiddenSibling HiddenSibling::claim(int home, const std::string& name, std::vector<std::string>& notes, bool durable) {
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        HiddenSibling made(home, name);
        if (made.create(durable)) return made;
        clear(home, name, notes);
    }
    throw Error(Errc::busy, "other processes keep creating " + safemap::quoted(name));
}

void HiddenSibling::clear(int home, const std::string& name, std::vector<std::string>& notes) {
    HiddenSibling dead = recover_abandoned(home, name);
    if (!dead) return;
    dead.remove_content(notes);
    dead.remove_notes();
    dead.remove();
}

/// Creates the sibling and locks it. Returns false if there is one already, or if another process removed ours as
/// stale.
bool HiddenSibling::create(bool durable) {
    // Only this user may look into it, whatever its content.
    if (calls.mkdirat(home_, name_.c_str(), S_IRWXU) != 0) {
        if (errno == EEXIST) return false;
        throw not_created(errno, name_);
    }
    try {
        grant(home_, name_.c_str());
    } catch (...) {
        calls.unlinkat(home_, name_.c_str(), AT_REMOVEDIR);
        throw;
    }
    folder_ = open_at(home_, name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!folder_) {
        if (errno == ENOENT) return false;
        const Error error = system_error(errno, "open " + safemap::quoted(name_));
        calls.unlinkat(home_, name_.c_str(), AT_REMOVEDIR);
        throw error;
    }
    Descriptor lock = open_at(folder(), lock_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!lock) {
        // While it was empty, another process could remove it and create its own.
        const int number = errno;
        if (number != ENOENT && number != EEXIST)
            throw system_error(number, "create a lock in " + safemap::quoted(name_));
        folder_.reset();
        return false;
    }
    lock_ = std::move(lock);
    if (denied_ != 0) grant(folder(), lock_name);
    // Between creation and locking, another process may have removed it as stale.
    const Lock state = try_lock(lock_.number());
    if (state != Lock::taken && still_there(lock_.number(), folder())) {
        // btrfs flushes only what fsync is called for: without this, the content could survive without the lock file.
        if (durable) sync_folder(folder());
        return true;
    }
    abandon();
    if (state == Lock::taken) throw busy();
    return false;
}

HiddenSibling HiddenSibling::recover_abandoned(int home, const std::string& name) {
    // An empty sibling has no owner: its writer died before it created the lock file, or will notice the removal.
    if (calls.unlinkat(home, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
    if (errno == ENOTDIR) throw foreign(name);
    if (!means_not_empty(errno)) throw failed(errno, "remove", name);

    HiddenSibling dead(home, name);
    dead.folder_ = open_at(home, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!dead) {
        if (errno == ENOENT) return {};
        throw failed(errno, "open", name);
    }
    try {
        dead.lock_ = lock_of_dead(dead.folder(), name);
        if (dead.lock_ && name == suffix) finish_commit(home);
    } catch (...) {
        dead.abandon();
        throw;
    }
    if (dead.lock_) return dead;
    dead.abandon();
    return {};
}

void HiddenSibling::grant(int folder, const char* name) {
    struct stat status = {};
    if (calls.fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return;  // another process removed it as stale
        throw system_error(errno, "examine a new file of the save");
    }
    const mode_t wanted = S_ISDIR(status.st_mode) ? S_IRWXU : S_IRUSR | S_IWUSR;
    const mode_t mode = status.st_mode & 07777;
    if ((mode & wanted) == wanted) return;
    denied_ |= wanted & ~mode;
    if (calls.fchmodat(folder, name, mode | wanted, 0) != 0 && errno != ENOENT)
        throw system_error(errno, "set the permissions of a new file of the save");
}

int HiddenSibling::move(int home, const std::string& name) {
    if (calls.renameat2(home_, name_.c_str(), home, name.c_str(), 0) != 0) return errno;
    home_ = home;
    name_ = name;
    return 0;
}

void HiddenSibling::remove_content(std::vector<std::string>& notes) const {
    clear_content(home_, name_, folder(), notes);
}

void HiddenSibling::remove_notes() const {
    for (const char* note : note_names) remove_file(note);
}

void HiddenSibling::remove_token() const {
    remove_file(token_name);
    remove_file(new_token_name);
}

void HiddenSibling::remove_file(const char* name) const {
    if (calls.unlinkat(folder(), name, 0) != 0 && errno != ENOENT)
        throw system_error(errno, "remove " + safemap::quoted(name) + " in " + safemap::quoted(name_));
}

void HiddenSibling::remove() {
    remove_file(lock_name);
    lock_.reset();
    if (calls.unlinkat(home_, name_.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT && !means_not_empty(errno))
        throw system_error(errno, "remove " + safemap::quoted(name_));
    folder_.reset();
}

void HiddenSibling::abandon() noexcept {
    folder_.reset();
    lock_.reset();
}

void HiddenSibling::discard() noexcept {
    if (!folder_) return;
    try {
        std::vector<std::string> notes;
        remove_content(notes);
        remove_notes();
        remove_file(lock_name);
    } catch (const std::exception&) {
        // The next writer removes it.
    }
    abandon();
    calls.unlinkat(home_, name_.c_str(), AT_REMOVEDIR);
}

}  // namespace safemap::SAFEMAP_ABI::io
