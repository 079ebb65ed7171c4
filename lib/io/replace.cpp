// Fills what will be the target in a hidden sibling, then renames it. Everything here is relative to the open parent
// folder, so a rename of that folder in mid-save moves the checkpoint with it instead of tearing it.
//
// The sibling is made empty, then gets its lock file, then the content; it loses the content, then the lock file, and
// is removed. So at any moment at which a writer may die it is empty or has the lock file in it, which is how it is
// told from what others put there.
#include "io/replace.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/listing.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>

#include <algorithm>
#include <string_view>

namespace safemap::io {

namespace {

constexpr std::string_view suffix = ".safemap-tmp";
constexpr const char* lock_name = "safemap.lock";
constexpr const char* content_name = "content";
constexpr std::size_t longest_name = 255;  // NAME_MAX of every file system worth naming
constexpr int most_attempts = 100;         // at a place that others create and remove all the time

constexpr std::string_view litter_hint = "remove it if no process is saving to this place";

enum class Lock { held, taken, unsupported };

Lock try_lock(int descriptor) {
    if (uninterrupted([&] { return calls.flock(descriptor, LOCK_EX | LOCK_NB); }) == 0) return Lock::held;
    if (errno == EWOULDBLOCK) return Lock::taken;
    // Network file systems may know no locks, or (NFS) none on directories.
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENOLCK || errno == EINVAL || errno == EBADF)
        return Lock::unsupported;
    throw system_error(errno, "lock it");
}

bool flags_unsupported(int number) { return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP; }

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

/// "out//" is "out".
std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

}  // namespace

Staging::Place::Place(const std::filesystem::path& path) : target(without_slashes(without_nul(path.native()))) {
    if (target.empty()) throw Error(Errc::invalid_argument, "an empty path to save to");
    const std::size_t slash = target.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : target.substr(0, slash + 1);
    name = target.substr(slash + 1);  // npos + 1 is 0
    if (name.empty()) throw Error(Errc::already_exists, "it is the root folder").with_path(target);
    if (name.size() > longest_name - suffix.size() - 1)
        throw Error(Errc::invalid_argument, "a name of " + bytes_text(name.size()) + ", wanted at most " +
                                                std::to_string(longest_name - suffix.size() - 1))
            .with_path(target);
    parent = open_at(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (!parent) throw system_error(errno, "open the folder to save in").with_path(without_slashes(folder));
}

bool Staging::Place::exists() const {
    struct stat status = {};
    if (calls.fstatat(parent.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return true;
    if (errno != ENOENT) throw system_error(errno, "examine it").with_path(target);
    return false;
}

void Staging::Place::require_absent() const {
    if (exists()) throw Error(Errc::already_exists, "exists already; nothing is overwritten").with_path(target);
}

void require_absent(const std::filesystem::path& target) { Staging::Place(target).require_absent(); }

Staging::Staging(const std::filesystem::path& target, Kind kind)
    : place_(target), kind_(kind), staged_("." + place_.name + std::string(suffix)) {
    place_.require_absent();
    try {
        claim();
        create_content();
    } catch (Error& error) {
        discard();
        throw error.with_path(place_.target);
    } catch (...) {
        discard();
        throw;
    }
}

Staging::~Staging() { discard(); }

void Staging::claim() {
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        if (create()) return;
        remove_litter();
    }
    throw Error(Errc::busy, "others keep taking the place " + safemap::quoted(staged_) + " beside it");
}

/// Creates the sibling and locks it. False where one is there already, or others took ours for litter.
bool Staging::create() {
    const int parent = place_.parent.number();
    if (calls.mkdirat(parent, staged_.c_str(), 0777) != 0) {
        if (errno == EEXIST) return false;
        throw system_error(errno, "create " + safemap::quoted(staged_) + " beside it");
    }
    state_ = State::made;
    grant_owner(parent, staged_.c_str());
    sibling_ = open_at(parent, staged_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!sibling_ && errno != ENOENT) throw system_error(errno, "open " + safemap::quoted(staged_) + " beside it");
    if (sibling_) lock_ = open_at(sibling_.number(), lock_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (!lock_) {
        // As long as it was empty, others could remove it, and make one of their own.
        if (errno != ENOENT && errno != EEXIST)
            throw system_error(errno, "create a lock in " + safemap::quoted(staged_) + " beside it");
        state_ = State::none;
        return false;
    }
    state_ = State::owned;
    grant_owner(lock_.number());
    // Between creating and locking, another process may have taken it for litter.
    const Lock lock = try_lock(lock_.number());
    if (lock != Lock::taken && still_there(lock_.number(), sibling_.number())) return true;
    state_ = State::none;
    lock_.reset();
    if (lock == Lock::taken) throw Error(Errc::busy, "another process is saving to it");
    return false;
}

void Staging::create_content() {
    if (kind_ == Kind::file) return;
    const int sibling = sibling_.number();
    if (calls.mkdirat(sibling, content_name, 0777) != 0) throw system_error(errno, "create a folder beside it");
    grant_owner(sibling, content_name);
    content_ = open_at(sibling, content_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!content_) throw system_error(errno, "open the new folder beside it");
}

/// A umask may take from the owner what a save needs: to write into the folders, and to open files again.
void Staging::grant_owner(int folder, const char* name) {
    struct stat status = {};
    if (calls.fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return;  // others took it for litter
        throw system_error(errno, "examine the new folder beside it");
    }
    const mode_t mode = status.st_mode & 07777;
    if ((mode & S_IRWXU) == S_IRWXU) return;
    denied_ = S_IRWXU & ~mode;
    if (calls.fchmodat(folder, name, mode | S_IRWXU, 0) != 0 && errno != ENOENT)
        throw system_error(errno, "set the permissions of the new folder beside it");
}

/// The same for a file, once it is known of a folder.
void Staging::grant_owner(int file) const {
    if (denied_ == 0) return;
    struct stat status = {};
    if (calls.fstat(file, &status) != 0 || calls.fchmod(file, (status.st_mode & 07777) | S_IRUSR | S_IWUSR) != 0)
        throw system_error(errno, "set its permissions");
}

/// What the umask wanted, at last.
void Staging::withdraw_grants() const {
    if (denied_ == 0) return;
    const auto withdraw = [this](int folder, const char* name) {
        struct stat status = {};
        if (calls.fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
            calls.fchmodat(folder, name, status.st_mode & 07777 & ~denied_, 0) != 0)
            throw system_error(errno, "set its permissions");
    };
    if (kind_ == Kind::folder)
        for (const std::string& file : files_) withdraw(content_.number(), file.c_str());
    withdraw(place_.parent.number(), place_.name.c_str());
}

Error Staging::foreign() const {
    Error error(Errc::already_exists, safemap::quoted(staged_) +
                                          " stands beside it, where the save has to begin, and "
                                          "no save left it; nothing is overwritten");
    error.with_hint("move it away, or save to another place");
    return error;
}

/// Removes the sibling that a dead process left. Throws busy where its owner lives, already_exists where it is none.
void Staging::remove_litter() const {
    const int parent = place_.parent.number();
    if (calls.unlinkat(parent, staged_.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return;
    if (errno == ENOTDIR) throw foreign();
    if (!means_not_empty(errno)) throw system_error(errno, "remove " + safemap::quoted(staged_) + " beside it");

    const Descriptor sibling = open_at(parent, staged_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!sibling) {
        if (errno == ENOENT) return;
        throw system_error(errno, "open " + safemap::quoted(staged_) + " beside it");
    }
    const auto names = list_all(sibling.number(), staged_);
    if (names.empty()) return;
    const auto is_ours = [](const std::string& name) { return name == lock_name || name == content_name; };
    if (!std::all_of(names.begin(), names.end(), is_ours) || names == std::vector<std::string>{content_name})
        throw foreign();
    Descriptor lock = open_at(sibling.number(), lock_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (!lock) {
        if (errno == ENOENT) return;
        if (errno == ELOOP || errno == EISDIR || errno == ENXIO) throw foreign();
        throw system_error(errno, "open the lock in " + safemap::quoted(staged_) + " beside it");
    }
    if (!is_lock(lock.number())) throw foreign();
    switch (try_lock(lock.number())) {
        case Lock::held: break;
        case Lock::taken: throw Error(Errc::busy, "another process is saving to it");
        case Lock::unsupported: {
            Error error(Errc::busy, safemap::quoted(staged_) +
                                        " stands beside it, and this file system has no locks to "
                                        "tell whether its writer lives");
            throw error.with_hint(litter_hint);
        }
    }
    if (!still_there(lock.number(), sibling.number())) return;
    remove_content_of(sibling.number());
    remove_locked(sibling.number(), lock);
}

/// The content of a sibling whose writer is dead.
void Staging::remove_content_of(int sibling) const {
    const auto failed = [this](std::string_view name) {
        return system_error(errno, "remove " + safemap::quoted(name) + ", which an interrupted save left in " +
                                       safemap::quoted(staged_));
    };
    struct stat status = {};
    if (calls.fstatat(sibling, content_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return;
        throw failed(content_name);
    }
    const bool is_folder = S_ISDIR(status.st_mode);
    if (calls.unlinkat(sibling, content_name, is_folder ? AT_REMOVEDIR : 0) == 0) return;
    if (!is_folder || !means_not_empty(errno)) throw failed(content_name);
    const Descriptor content = open_at(sibling, content_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!content) throw failed(content_name);
    for (const std::string& file : list_all(content.number(), staged_))
        if (calls.unlinkat(content.number(), file.c_str(), 0) != 0) throw failed(file);
    if (calls.unlinkat(sibling, content_name, AT_REMOVEDIR) != 0) throw failed(content_name);
}

const char* Staging::name_in_folder(const std::string& name) const noexcept {
    return kind_ == Kind::folder ? name.c_str() : content_name;
}

std::string Staging::path_of(const std::string& name) const {
    return kind_ == Kind::folder ? place_.target + "/" + name : place_.target;
}

OutputFile Staging::add(const std::string& name) {
    files_.push_back(name);
    OutputFile file = OutputFile::create(files_folder(), name_in_folder(name));
    grant_owner(file.descriptor());
    return file;
}

OutputFile Staging::reopen(const std::string& name) const {
    Descriptor descriptor = open_at(files_folder(), name_in_folder(name), O_WRONLY | O_NOFOLLOW);
    if (!descriptor) throw system_error(errno, "open it again");
    return OutputFile(std::move(descriptor));
}

void Staging::commit() {
    try {
        if (kind_ == Kind::folder) sync_folder(content_.number());
        appear();
        sync_folder(place_.parent.number());
        withdraw_grants();
        remove_locked(sibling_.number(), lock_);
    } catch (Error& error) {
        throw error.with_path(place_.target);
    }
    state_ = State::committed;
}

void Staging::appear() {
    const int parent = place_.parent.number();
    if (calls.renameat2(sibling_.number(), content_name, parent, place_.name.c_str(), RENAME_NOREPLACE) != 0) {
        const int number = errno;
        if (number == EEXIST) place_.require_absent();
        if (!flags_unsupported(number)) throw system_error(number, "rename it into place");
        appear_without_flags();
    }
    state_ = State::appeared;
}

/// For file systems whose rename always replaces. A file appears by a hard link, which never replaces; a folder, or
/// a file where there are no links, after one more look at the place.
void Staging::appear_without_flags() {
    const int sibling = sibling_.number();
    const int parent = place_.parent.number();
    const char* name = place_.name.c_str();
    if (kind_ == Kind::file) {
        if (calls.linkat(sibling, content_name, parent, name, 0) == 0) {
            if (calls.unlinkat(sibling, content_name, 0) == 0) return;
            const int number = errno;
            calls.unlinkat(parent, name, 0);
            throw system_error(number, "rename it into place");
        }
        if (errno == EEXIST) place_.require_absent();
    }
    place_.require_absent();
    if (calls.renameat2(sibling, content_name, parent, name, 0) != 0) throw system_error(errno, "rename it into place");
}

/// Removes a sibling in which only the lock is left. The lock is closed before the folder goes: on NFS, what is removed
/// while it is open stays under another name. From then on another writer may have the place.
void Staging::remove_locked(int sibling, Descriptor& lock) const {
    if (calls.unlinkat(sibling, lock_name, 0) != 0 && errno != ENOENT)
        throw system_error(errno, "remove the lock beside it");
    lock.reset();
    if (calls.unlinkat(place_.parent.number(), staged_.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT &&
        !means_not_empty(errno))
        throw system_error(errno, "remove " + safemap::quoted(staged_) + " beside it");
}

void Staging::discard() noexcept {
    if (state_ == State::none || state_ == State::committed) return;
    const int sibling = sibling_.number();
    const int parent = place_.parent.number();
    // Renamed, but not known to be on the disk: to the caller the save has failed, so it must not be there.
    if (state_ == State::appeared) calls.renameat2(parent, place_.name.c_str(), sibling, content_name, 0);
    if (state_ != State::made) {
        if (kind_ == Kind::folder) {
            if (denied_ != 0) calls.fchmod(content_.number(), S_IRWXU);
            for (const std::string& file : files_) calls.unlinkat(content_.number(), file.c_str(), 0);
        }
        calls.unlinkat(sibling, content_name, kind_ == Kind::folder ? AT_REMOVEDIR : 0);
        calls.unlinkat(sibling, lock_name, 0);
        lock_.reset();
    }
    state_ = State::none;
    calls.unlinkat(parent, staged_.c_str(), AT_REMOVEDIR);
}

}  // namespace safemap::io
