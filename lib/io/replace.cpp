// Fills a sibling, then renames it. Everything here is relative to the open parent folder, so a rename of that folder
// in mid-save moves the checkpoint with it instead of tearing it.
#include "io/replace.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/listing.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>

#include <string_view>

namespace safemap::io {

namespace {

constexpr std::string_view suffix = ".safemap-tmp";
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

/// Creates the sibling and locks it. False where one is there already.
bool Staging::create() {
    const int parent = place_.parent.number();
    if (kind_ == Kind::folder) {
        if (calls.mkdirat(parent, staged_.c_str(), 0777) != 0) {
            if (errno == EEXIST) return false;
            throw system_error(errno, "create " + safemap::quoted(staged_) + " beside it");
        }
        state_ = State::staged;
        held_ = open_at(parent, staged_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    } else {
        held_ = open_at(parent, staged_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
        if (!held_ && errno == EEXIST) return false;
        if (held_) state_ = State::staged;
    }
    if (!held_) throw system_error(errno, "create " + safemap::quoted(staged_) + " beside it");

    // Between creating and locking, another process may have taken it for litter.
    const Lock lock = try_lock(held_.number());
    const bool lost = lock == Lock::taken || !still_there(held_.number());
    if (!lost) return true;
    state_ = State::none;
    held_.reset();
    if (lock == Lock::taken) throw Error(Errc::busy, "another process is saving to it");
    return false;
}

/// Removes the sibling that a dead process left. Throws busy where its owner lives.
void Staging::remove_litter() const {
    const int parent = place_.parent.number();
    const Descriptor litter = open_at(parent, staged_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!litter) {
        if (errno == ENOENT) return;
        if (errno != ELOOP && errno != ENXIO)
            throw system_error(errno, "open " + safemap::quoted(staged_) + " beside it");
        Error error(Errc::busy, safemap::quoted(staged_) + " stands beside it, a link or a socket that no save left");
        throw error.with_hint(litter_hint);
    }
    switch (try_lock(litter.number())) {
        case Lock::held: break;
        case Lock::taken: throw Error(Errc::busy, "another process is saving to it");
        case Lock::unsupported: {
            Error error(Errc::busy, safemap::quoted(staged_) +
                                        " stands beside it, and this file system has no locks to "
                                        "tell whether its writer lives");
            throw error.with_hint(litter_hint);
        }
    }
    if (!still_there(litter.number())) return;

    struct stat status = {};
    if (calls.fstat(litter.number(), &status) != 0) throw system_error(errno, "examine " + safemap::quoted(staged_));
    const bool is_folder = S_ISDIR(status.st_mode);
    if (is_folder) {
        for (const std::string& file : list_all(litter.number(), staged_))
            if (calls.unlinkat(litter.number(), file.c_str(), 0) != 0 && errno != ENOENT)
                throw system_error(errno, "remove " + safemap::quoted(file) + ", which an interrupted save left in " +
                                              safemap::quoted(staged_));
    }
    if (calls.unlinkat(parent, staged_.c_str(), is_folder ? AT_REMOVEDIR : 0) != 0 && errno != ENOENT)
        throw system_error(errno, "remove " + safemap::quoted(staged_) + ", which an interrupted save left beside it");
}

/// Whether the sibling is still what is open: its former owner may have renamed or removed it before we had the lock.
bool Staging::still_there(int descriptor) const {
    struct stat open = {};
    struct stat named = {};
    if (calls.fstat(descriptor, &open) != 0) throw system_error(errno, "examine " + safemap::quoted(staged_));
    if (calls.fstatat(place_.parent.number(), staged_.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return false;
        throw system_error(errno, "examine " + safemap::quoted(staged_));
    }
    return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

OutputFile Staging::only_file() const {
    // Shares the lock, which lasts until both are closed.
    Descriptor descriptor(calls.duplicate(held_.number()));
    if (!descriptor) throw system_error(errno, "write to it");
    return OutputFile(std::move(descriptor));
}

OutputFile Staging::add(const std::string& name) {
    if (kind_ == Kind::file) return only_file();
    files_.push_back(name);
    try {
        return OutputFile::create(held_.number(), name);
    } catch (...) {
        files_.pop_back();
        throw;
    }
}

OutputFile Staging::reopen(const std::string& name) const {
    if (kind_ == Kind::file) return only_file();
    Descriptor descriptor = open_at(held_.number(), name.c_str(), O_WRONLY | O_NOFOLLOW);
    if (!descriptor) throw system_error(errno, "open it again");
    return OutputFile(std::move(descriptor));
}

void Staging::commit() {
    try {
        if (kind_ == Kind::folder) sync_folder(held_.number());
        appear();
        sync_folder(place_.parent.number());
    } catch (Error& error) {
        throw error.with_path(place_.target);
    }
    state_ = State::committed;
    held_.reset();
}

void Staging::appear() {
    const int parent = place_.parent.number();
    if (calls.renameat2(parent, staged_.c_str(), parent, place_.name.c_str(), RENAME_NOREPLACE) != 0) {
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
    const int parent = place_.parent.number();
    const char* name = place_.name.c_str();
    if (kind_ == Kind::file) {
        if (calls.linkat(parent, staged_.c_str(), parent, name, 0) == 0) {
            if (calls.unlinkat(parent, staged_.c_str(), 0) == 0) return;
            const int number = errno;
            calls.unlinkat(parent, name, 0);
            throw system_error(number, "rename it into place");
        }
        if (errno == EEXIST) place_.require_absent();
    }
    place_.require_absent();
    if (calls.renameat2(parent, staged_.c_str(), parent, name, 0) != 0)
        throw system_error(errno, "rename it into place");
}

void Staging::discard() noexcept {
    if (state_ == State::none || state_ == State::committed) return;
    const int parent = place_.parent.number();
    // Renamed, but not known to be on the disk: to the caller the save has failed, so it must not be there.
    if (state_ == State::appeared) calls.renameat2(parent, place_.name.c_str(), parent, staged_.c_str(), 0);
    state_ = State::none;
    for (const std::string& file : files_) calls.unlinkat(held_.number(), file.c_str(), 0);
    calls.unlinkat(parent, staged_.c_str(), kind_ == Kind::folder ? AT_REMOVEDIR : 0);
    held_.reset();
}

}  // namespace safemap::io
