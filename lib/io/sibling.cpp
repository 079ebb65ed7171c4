// The sibling is made empty, then gets its lock file, then the content; it loses the content, then the lock file, and
// is removed. So at any moment at which a writer may die it is empty or has the lock file in it, which is how it is
// told from what others put there.
//   - First the tests of what is found in its place: a lock, our content, our notes, or somebody else's.
//   - claim() makes one, and clears away what a dead writer left; create() is one attempt.
//   - take_over() gets the lock of a dead writer; lock_of_dead() says how that may end.
//   - remove(), abandon() and discard() end it: orderly, leaving all as it is, or whatever goes wrong.
#include "io/sibling.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/commit_list.hpp"
#include "io/exchange_list.hpp"
#include "io/journal.hpp"
#include "io/listing.hpp"
#include "io/note.hpp"
#include "io/old_content.hpp"
#include "io/output.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr const char* lock_name = "safemap.lock";
constexpr int most_attempts = 100;  // at a place that others create and remove all the time

enum class Lock { held, taken, unsupported };

Lock try_lock(int descriptor) {
    if (uninterrupted([&] { return calls.flock(descriptor, LOCK_EX | LOCK_NB); }) == 0) return Lock::held;
    if (errno == EWOULDBLOCK) return Lock::taken;
    // Network file systems may know no locks.
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENOLCK || errno == EINVAL || errno == EBADF)
        return Lock::unsupported;
    throw system_error(errno, "lock it");
}

bool means_not_empty(int number) { return number == ENOTEMPTY || number == EEXIST; }

/// Whether the file open as `descriptor` is an empty regular one, as the lock is.
bool is_lock(int descriptor) {
    struct stat status = {};
    if (calls.fstat(descriptor, &status) != 0) throw system_error(errno, "examine the lock");
    return S_ISREG(status.st_mode) && status.st_size == 0;
}

/// Whether the lock that is open is still the one in the sibling: its former owner, or who took it for litter, may have
/// removed it before we had it.
bool still_there(int lock, int sibling) {
    struct stat open = {};
    struct stat named = {};
    if (calls.fstat(lock, &open) != 0) throw system_error(errno, "examine the lock");
    if (calls.fstatat(sibling, lock_name, &named, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return false;
        throw system_error(errno, "examine the lock");
    }
    return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

/// What may be in a sibling besides its lock and its content.
constexpr std::array note_names = {journal_name,  new_journal_name,   commit_list_name,
                                   new_list_name, exchange_list_name, new_exchange_list_name};

bool is_known(const std::string& name) {
    return name == lock_name || name == Sibling::content ||
           std::any_of(note_names.begin(), note_names.end(), [&](const char* note) { return name == note; });
}

/// Whether a folder with these names in it is one of ours: our names only, and the lock among them, or nothing yet.
bool is_ours(const std::vector<std::string>& names) {
    const bool locked = std::find(names.begin(), names.end(), lock_name) != names.end();
    return std::all_of(names.begin(), names.end(), is_known) && (locked || names.empty());
}

/// Whether the content of a sibling is what a save makes: nothing yet, a file, or a folder with no folders in it.
bool is_our_content(int sibling) {
    struct stat status = {};
    if (calls.fstatat(sibling, Sibling::content, &status, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT;
    if (status.st_uid != ::geteuid()) return false;
    if (S_ISREG(status.st_mode)) return status.st_nlink == 1;
    if (!S_ISDIR(status.st_mode)) return false;
    const Descriptor inside = open_at(sibling, Sibling::content, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    return inside && list_inner_folders(inside.number(), Sibling::content).empty();
}

/// Whether a note is one of ours: it says so, or a power failure took all that was in it. A commit list decides where
/// files go, so it has to say so.
bool is_our_note(int sibling, const std::string& name) {
    const Descriptor note = open_at(sibling, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!note) return false;
    struct stat status = {};
    if (calls.fstat(note.number(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
    if (status.st_size == 0) return name != commit_list_name;
    return read_note(note.number(), name).starts_with("safemap " + name + ' ');
}

/// Whether a folder without a lock is one of ours that a power failure took the lock from: it has no names but ours, a
/// content as a save makes it, notes that say whose they are; and it belongs to this user, whom alone it lets look in,
/// unless it is committed in place. Saves of today bring the lock to the disk before all else.
bool has_lost_lock(int sibling, const std::vector<std::string>& names) {
    struct stat status = {};
    if (calls.fstat(sibling, &status) != 0 || status.st_uid != ::geteuid()) return false;
    bool committed = false;
    for (const std::string& name : names) {
        if (name == lock_name || !is_known(name)) return false;
        if (name == Sibling::content || name.ends_with(".new")) continue;
        if (!is_our_note(sibling, name)) return false;
        committed = committed || name == commit_list_name;
    }
    // A list that is not of a commit is refused when the commit is finished.
    return committed || ((status.st_mode & 0777) == S_IRWXU && is_our_content(sibling));
}

/// Says how to go on where nobody can tell whether the writer of a sibling lives. What is in it may be nowhere else.
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

Error failed(int number, const char* doing, const std::string& name) {
    return system_error(number, std::string(doing) + ' ' + safemap::quoted(name));
}

/// Takes the lock of a sibling whose writer has died. Nothing where somebody else has it, or it is gone.
Descriptor lock_of_dead(int folder, const std::string& name) {
    const auto names = list_all(folder, name);
    const bool no_lock = !is_ours(names);
    if (no_lock && !has_lost_lock(folder, names)) throw foreign(name);
    if (names.empty()) return {};
    const int how = no_lock ? O_CREAT | O_EXCL : O_NONBLOCK;
    Descriptor lock = open_at(folder, lock_name, O_RDWR | O_NOFOLLOW | how, S_IRUSR | S_IWUSR);
    if (!lock) {
        if (errno == ENOENT || errno == EEXIST) return {};  // it came or went while the folder was listed
        if (errno == ELOOP || errno == EISDIR || errno == ENXIO) throw foreign(name);
        throw failed(errno, "open the lock in", name);
    }
    if (!is_lock(lock.number())) throw foreign(name);
    const Lock state = try_lock(lock.number());
    if (state == Lock::taken) throw busy();
    if (state == Lock::unsupported)
        throw Error(Errc::busy, safemap::quoted(name) +
                                    " exists, and this file system has no "
                                    "locks to tell whether its writer is running")
            .with_hint(unlocked_hint(folder));
    return still_there(lock.number(), folder) ? std::move(lock) : Descriptor();
}

}  // namespace

Sibling::Sibling(Sibling&& other) noexcept { *this = std::move(other); }

Sibling& Sibling::operator=(Sibling&& other) noexcept {
    std::swap(home_, other.home_);
    std::swap(name_, other.name_);
    std::swap(folder_, other.folder_);
    std::swap(lock_, other.lock_);
    std::swap(denied_, other.denied_);
    return *this;
}

Sibling Sibling::claim(int home, const std::string& name, std::vector<std::string>& notes, bool durable) {
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        Sibling made(home, name);
        if (made.create(durable)) return made;
        clear(home, name, notes);
    }
    throw Error(Errc::busy, "other processes keep creating " + safemap::quoted(name));
}

void Sibling::clear(int home, const std::string& name, std::vector<std::string>& notes) {
    Sibling dead = take_over(home, name);
    if (!dead) return;
    dead.remove_content(notes);
    dead.remove_notes();
    dead.remove();
}

/// Creates the sibling and locks it. False where one is there already, or others took ours for litter.
bool Sibling::create(bool durable) {
    // For nobody else to see, whatever is to be in it.
    if (calls.mkdirat(home_, name_.c_str(), S_IRWXU) != 0) {
        if (errno == EEXIST) return false;
        throw system_error(errno, "create " + safemap::quoted(name_));
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
        // As long as it was empty, others could remove it, and make one of their own.
        const int number = errno;
        if (number != ENOENT && number != EEXIST)
            throw system_error(number, "create a lock in " + safemap::quoted(name_));
        folder_.reset();
        return false;
    }
    lock_ = std::move(lock);
    if (denied_ != 0) grant(folder(), lock_name);
    // Between creating and locking, another process may have taken it for litter.
    const Lock state = try_lock(lock_.number());
    if (state != Lock::taken && still_there(lock_.number(), folder())) {
        // A file system that brings only what is asked for to the disk (btrfs) would keep the content without it.
        if (durable) sync_folder(folder());
        return true;
    }
    abandon();
    if (state == Lock::taken) throw busy();
    return false;
}

Sibling Sibling::take_over(int home, const std::string& name) {
    // Empty, it is nobody's: its writer died before there was a lock, or is about to notice.
    if (calls.unlinkat(home, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
    if (errno == ENOTDIR) throw foreign(name);
    if (!means_not_empty(errno)) throw failed(errno, "remove", name);

    Sibling dead(home, name);
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

void Sibling::grant(int folder, const char* name) {
    struct stat status = {};
    if (calls.fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return;  // others took it for litter
        throw system_error(errno, "examine a new file of the save");
    }
    const mode_t wanted = S_ISDIR(status.st_mode) ? S_IRWXU : S_IRUSR | S_IWUSR;
    const mode_t mode = status.st_mode & 07777;
    if ((mode & wanted) == wanted) return;
    denied_ |= wanted & ~mode;
    if (calls.fchmodat(folder, name, mode | wanted, 0) != 0 && errno != ENOENT)
        throw system_error(errno, "set the permissions of a new file of the save");
}

int Sibling::move(int home, const std::string& name) {
    if (calls.renameat2(home_, name_.c_str(), home, name.c_str(), 0) != 0) return errno;
    home_ = home;
    name_ = name;
    return 0;
}

void Sibling::remove_content(std::vector<std::string>& notes) const { clear_content(home_, name_, folder(), notes); }

void Sibling::remove_notes() const {
    for (const char* note : note_names) remove_file(note);
}

void Sibling::remove_file(const char* name) const {
    if (calls.unlinkat(folder(), name, 0) != 0 && errno != ENOENT)
        throw system_error(errno, "remove " + safemap::quoted(name) + " in " + safemap::quoted(name_));
}

void Sibling::remove() {
    remove_file(lock_name);
    lock_.reset();
    if (calls.unlinkat(home_, name_.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT && !means_not_empty(errno))
        throw system_error(errno, "remove " + safemap::quoted(name_));
    folder_.reset();
}

void Sibling::abandon() noexcept {
    folder_.reset();
    lock_.reset();
}

void Sibling::discard() noexcept {
    if (!folder_) return;
    try {
        std::vector<std::string> notes;
        remove_content(notes);
        remove_notes();
        remove_file(lock_name);
    } catch (const std::exception&) {
        // The next writer clears it away.
    }
    abandon();
    calls.unlinkat(home_, name_.c_str(), AT_REMOVEDIR);
}

}  // namespace safemap::SAFEMAP_ABI::io
