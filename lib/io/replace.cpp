// Fills a hidden sibling and then puts its content in place of the target. All paths are relative to the open parent
// folder: if that folder is renamed during a save, the checkpoint moves with it and is not torn.
//   1. The target: where it is, what is there, and its identity.
//   2. Preparing: finish, resume or remove what a dead save left; then claim the sibling and create files in it.
//   3. Committing: set owners and permissions, then, depending on the target:
//        - nothing is there: appear() renames the content into place
//        - a file: exchange_file() exchanges the two
//        - a folder: exchange_folder() exchanges it with the content, which has links to the files that stay
//        - a folder that cannot be exchanged: commit_in_place() moves file by file, under a list that the next
//          save can finish
//   4. The end: the destructor removes or takes back what was not committed, if it is only ours. Before the commit,
//      keep_finished() leaves the finished files to the next save instead.
#include "io/replace.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/commit_list.hpp"
#include "io/exchange_list.hpp"
#include "io/file.hpp"
#include "io/joined_staging.hpp"
#include "io/listing.hpp"
#include "io/old_content.hpp"
#include "io/stamp.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string_view>
#include <system_error>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::size_t longest_name = 255;  // bytes; NAME_MAX of all common file systems

/// Removes trailing slashes: "out//" becomes "out".
std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

std::set<std::string_view> set_of(std::span<const std::string> a, std::span<const std::string> b) {
    std::set<std::string_view> all(a.begin(), a.end());
    all.insert(b.begin(), b.end());
    return all;
}

/// Returns device and inode; for a file also size and time.
std::string text_of_whole(const struct stat& status) {
    Identity identity = identity_of(status);
    if (S_ISDIR(status.st_mode)) identity.size = identity.modified_ns = 0;
    return text_of(identity);
}

/// Returns a name for a job whose files may not be on the disk. The name changes at each boot, so a save after that
/// does not resume the job. Returns an empty name if the system has no boot id.
std::string until_next_boot(const std::string& job) {
    const std::string boot = job.empty() ? std::string() : calls.boot_id();
    return boot.empty() ? std::string() : job + " in boot " + boot;
}

}  // namespace

// ---- the target

Staging::Place::Place(const std::filesystem::path& path, bool follow)
    : target(without_slashes(without_nul(path.native()))) {
    if (target.empty()) throw Error(Errc::invalid_argument, "the path to save to is empty");
    std::string real = target;
    std::error_code ignored;
    if (follow && std::filesystem::is_directory(target, ignored)) {
        const std::filesystem::path resolved = std::filesystem::canonical(target, ignored);
        if (!ignored) real = resolved.native();
    }
    const std::size_t slash = real.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : real.substr(0, slash + 1);
    name = real.substr(slash + 1);  // npos + 1 is 0
    if (name.empty()) throw Error(Errc::already_exists, "it is the root folder").with_path(target);
    const std::size_t longest = longest_name - std::string_view(HiddenSibling::suffix).size() - 1;
    if (name.size() > longest)
        throw Error(Errc::invalid_argument,
                    "its name has " + bytes_text(name.size()) + ", the limit is " + std::to_string(longest))
            .with_path(target);
    parent = open_at(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (!parent) throw system_error(errno, "open the folder to save in").with_path(without_slashes(folder));
}

bool Staging::Place::status(struct stat& found) const {
    if (calls.fstatat(parent.number(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) return true;
    if (errno != ENOENT) throw system_error(errno, "examine it").with_path(target);
    return false;
}

void Staging::Place::require_absent() const {
    struct stat found = {};
    if (status(found))
        throw Error(Errc::already_exists, "already exists and is not overwritten")
            .with_path(target)
            .with_hint("--force (SaveOptions::overwrite) replaces it");
}

void require_absent(const std::filesystem::path& target) { Staging::Place(target, false).require_absent(); }

// ---- preparing

Staging::Staging(const std::filesystem::path& target, Kind kind, Existing existing, StagingOptions job)
    : place_(target, existing != Existing::refuse && kind == Kind::folder),
      kind_(kind),
      merges_(existing == Existing::merge),
      job_(std::move(job)) {
    if (!job_.durable) job_.id = until_next_boot(job_.id);
    about_file(place_.target, [&] {
        // Finish a save that died during its commit: its files count already, and one of them may have the target's
        // name.
        if (kind == Kind::file && read_commit_list(place_.parent.number()))
            HiddenSibling::clear(place_.parent.number(), HiddenSibling::suffix, notes_);
        if (existing != Existing::refuse) examine_old();
        else if (take_published()) return;
        else place_.require_absent();
        claim();
        create_content();
    });
}

/// Examines the file or folder to replace, if there is one.
void Staging::examine_old() {
    struct stat found = {};
    replaces_ = place_.status(found);
    if (!replaces_) return;
    const bool folder = S_ISDIR(found.st_mode);
    if (kind_ == Kind::folder && !folder)
        throw Error(Errc::already_exists, "it is not a folder, but a folder would be written");
    if (kind_ == Kind::file && !S_ISREG(found.st_mode) && !S_ISLNK(found.st_mode))
        throw Error(Errc::already_exists, folder ? "it is a folder, but a file would be written"
                                                 : "it is neither a file nor a folder, and is not replaced");
    if (S_ISLNK(found.st_mode)) {
        struct stat target = {};
        if (calls.fstatat(place_.parent.number(), place_.name.c_str(), &target, 0) == 0 && S_ISREG(target.st_mode))
            found = target;
    }
    if (!job_.replaced.empty() && lasting_text_of(identity_of(found)) != job_.replaced)
        throw Error(Errc::file_changed, "it was changed after it was read");
    if (!S_ISLNK(found.st_mode)) old_mode_ = found.st_mode & 07777;
    old_identity_ = identity_at(place_.parent.number(), place_.name.c_str());
    if (!folder) return;
    if (calls.faccessat(place_.parent.number(), place_.name.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
        throw system_error(errno, "write into it");
    old_ = open_at(place_.parent.number(), place_.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!old_) throw system_error(errno, "open it");
    lock_old();
}

/// Takes the folder at the target if a dead process has put it there as the content of this job: then its journal is
/// still in the sibling, without the content. Otherwise leaves everything as it is, and returns false.
bool Staging::take_published() {
    struct stat found = {};
    const std::string name = '.' + place_.name + HiddenSibling::suffix;
    const int parent = place_.parent.number();
    if (!job_.resume || job_.id.empty() || kind_ != Kind::folder || !place_.status(found) || !S_ISDIR(found.st_mode) ||
        calls.fstatat(parent, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    HiddenSibling dead = HiddenSibling::recover_abandoned(parent, name);
    if (!dead) return false;
    try {
        const bool has_content = calls.fstatat(dead.folder(), HiddenSibling::content, &found, AT_SYMLINK_NOFOLLOW) == 0;
        Descriptor published = open_at(parent, place_.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        std::vector<std::string> done;
        if (!has_content && published)
            journal_ = Journal::resume(dead.folder(), published.number(), job_.id, done, job_.durable);
        if (!journal_ || done.empty()) {
            journal_ = {};
            dead.abandon();
            return false;
        }
        finished_.insert(done.begin(), done.end());
        dead.remove_token();
        content_ = std::move(published);
        sibling_ = std::move(dead);
        state_ = State::published;
        return true;
    } catch (...) {
        dead.abandon();
        throw;
    }
}

/// Does what the dead process did not come to.
void Staging::finish_published() {
    sync(place_.parent.number());
    remove_journal();
    sibling_.remove();
    state_ = State::committed;
}

/// Returns an empty text if nothing has the name.
std::string Staging::identity_at(int folder, const char* name) const {
    struct stat found = {};
    if (calls.fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0) return {};
    return text_of_whole(found);
}

/// Locks the folder itself: two writers may have chosen different places for their siblings.
void Staging::lock_old() const {
    if (uninterrupted([&] { return calls.flock(old_.number(), LOCK_EX | LOCK_NB); }) == 0) return;
    if (errno == EWOULDBLOCK) throw Error(Errc::busy, "another process is saving to it");
    // Not an error: some file systems cannot lock folders.
}

void Staging::claim() {
    const int parent = place_.parent.number();
    const std::string beside = '.' + place_.name + HiddenSibling::suffix;
    if (!old_) {
        sibling_ = recover_or_claim(parent, beside);
        return;
    }
    if (!job_.resume) HiddenSibling::clear(old_.number(), HiddenSibling::suffix, notes_);
    // The working directory is replaced in place: an exchange would leave the processes in it in the old folder.
    inside_ = calls.is_mount_root(old_.number()) || identity_at(AT_FDCWD, ".") == old_identity_ ||
              !Linking(old_.number(), place_.target).is_possible();
    if (!inside_) {
        try {
            sibling_ = recover_or_claim(parent, beside);
            return;
        } catch (const Error& error) {
            if (error.code() != Errc::permission_denied) throw;
            inside_ = true;
        }
    }
    clear_beside(beside);
    sibling_ = recover_or_claim(old_.number(), HiddenSibling::suffix);
}

/// Removes the sibling that a dead save left beside the folder, at a time when the folder could be exchanged. This save
/// does not need that place, so an error is ignored.
void Staging::clear_beside(const std::string& name) {
    try {
        HiddenSibling::clear(place_.parent.number(), name, notes_);
    } catch (const Error&) {
    }
}

HiddenSibling Staging::recover_or_claim(int home, const std::string& name) {
    if (job_.resume && !job_.id.empty() && kind_ == Kind::folder) {
        HiddenSibling dead = HiddenSibling::recover_abandoned(home, name);
        try {
            if (dead && continue_old(dead)) return dead;
            if (dead) dead.remove_content(notes_);
        } catch (...) {
            dead.abandon();  // the next attempt may succeed
            throw;
        }
    }
    return HiddenSibling::claim(home, name, notes_, job_.durable);
}

/// Resumes a dead process's save: keeps the finished files of its content and removes the others.
bool Staging::continue_old(const HiddenSibling& dead) {
    // After an exchange, the content may be the old folder.
    struct stat status = {};
    if (calls.fstatat(dead.folder(), exchange_list_name, &status, AT_SYMLINK_NOFOLLOW) == 0) return false;
    Descriptor content = open_at(dead.folder(), HiddenSibling::content, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!content) return false;
    std::vector<std::string> done;
    journal_ = Journal::resume(dead.folder(), content.number(), job_.id, done, job_.durable);
    if (!journal_) return false;
    finished_.insert(done.begin(), done.end());
    remove_unfinished(content.number(), {});
    dead.remove_token();
    content_ = std::move(content);
    return true;
}

/// Removes files that are not finished. `prefix` is the path of the open `folder` in the content.
void Staging::remove_unfinished(int folder, const std::string& prefix) const {
    for (const std::string& name : list_all(folder, place_.target)) {
        const std::string path = prefix + name;
        if (finished_.count(path) != 0) continue;
        const auto below = finished_.lower_bound(path + '/');
        if (below == finished_.end() || !below->starts_with(path + '/')) {
            remove_all(folder, name);
            continue;
        }
        const Descriptor inner = open_inner(folder, name);
        if (!inner) throw system_error(errno, "open " + safemap::quoted(path) + ", which an interrupted save left");
        remove_unfinished(inner.number(), path + '/');
    }
}

void Staging::create_content() {
    if (kind_ == Kind::file || content_) return;
    const int sibling = sibling_.folder();
    if (calls.mkdirat(sibling, HiddenSibling::content, 0777) != 0) throw system_error(errno, "create the new folder");
    sibling_.grant(sibling, HiddenSibling::content);
    content_ = open_at(sibling, HiddenSibling::content, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!content_) throw system_error(errno, "open the new folder");
    if (!job_.id.empty()) journal_ = Journal::begin(sibling, job_.id, job_.durable);
}

const char* Staging::name_in_folder(const std::string& name) const noexcept {
    return kind_ == Kind::folder ? name.c_str() : HiddenSibling::content;
}

std::string Staging::path_of(const std::string& name) const {
    return kind_ == Kind::folder ? place_.target + "/" + name : place_.target;
}

bool Staging::adopt(const std::string& name) {
    if (finished_.count(name) == 0) return false;
    files_.push_back(name);
    return true;
}

void Staging::finished(const std::string& name) {
    if (!journal_) return;
    const std::lock_guard lock(journaling_);
    journal_.add(content_.number(), name);
    finished_.insert(name);
}

std::size_t Staging::keep_finished() noexcept {
    if (state_ == State::published) return finished_.size();
    if (state_ != State::preparing || !journal_ || finished_.empty()) return 0;
    state_ = State::kept;
    try {
        remove_unfinished(content_.number(), {});
        sibling_.remove_token();
    } catch (const std::exception&) {
        // The next save removes it.
    }
    return finished_.size();
}

void Staging::add_folder(const std::string& name) {
    struct stat there = {};
    if (old_ && calls.fstatat(old_.number(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(there.st_mode))
        throw Error(Errc::already_exists,
                    safemap::quoted(name) + " in it is not a folder, but a folder would be written");
    folders_.push_back(name);
    if (state_ == State::published) return;
    // EEXIST: a dead process may have created it.
    if (calls.mkdirat(content_.number(), name.c_str(), 0777) != 0 && errno != EEXIST)
        throw system_error(errno, "create the folder " + safemap::quoted(name));
    sibling_.grant(content_.number(), name.c_str());
}

OutputFile Staging::add(const std::string& name) {
    if (state_ == State::published) place_.require_absent();  // it was changed since
    files_.push_back(name);
    OutputFile file = OutputFile::create(files_folder(), name_in_folder(name), job_.durable);
    if (sibling_.denied() != 0) sibling_.grant(files_folder(), name_in_folder(name));
    return file;
}

OutputFile Staging::reopen(const std::string& name) const {
    Descriptor descriptor = open_at(files_folder(), name_in_folder(name), O_WRONLY | O_NOFOLLOW);
    if (!descriptor) throw system_error(errno, "open it again");
    return OutputFile(std::move(descriptor), job_.durable);
}

// ---- committing

void Staging::sync(int folder) const {
    if (job_.durable) sync_folder(folder);
}

std::string Staging::open_to_others() {
    return about_file(place_.target, [&] {
        const std::string token = new_token();
        has_token_ = true;
        put_token(sibling_.folder(), token, job_.durable);
        return std::string(state_ == State::published ? "published" : inside_ ? "inside" : "beside") + ' ' + token;
    });
}

void Staging::commit(std::span<const std::string> old_files) {
    about_file(place_.target, [&] {
        if (std::exchange(has_token_, false)) sibling_.remove_token();
        if (state_ == State::published) return finish_published();
        set_permissions(old_files);
        set_folder_permissions();
        if (old_) {
            if (merges_) require_free();
            if (inside_ || !exchange_folder(old_files)) commit_in_place(old_files);
            return;
        }
        if (replaces_) exchange_file();
        else appear();
    });
}

/// Throws if a file with one of the new names has appeared in the folder since the save began.
void Staging::require_free() const {
    for (const std::string& name : files_) {
        struct stat status = {};
        if (calls.fstatat(old_.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
            throw Error(Errc::already_exists,
                        safemap::quoted(name) + " appeared in the folder, which had no checkpoint when the save began");
        if (errno != ENOENT) throw system_error(errno, "examine " + safemap::quoted(name));
    }
}

/// Gives each file an owner and permissions, in order of preference:
/// 1. of the file that it replaces
/// 2. of the first file of the old model, in a folder that is replaced
/// 3. as the umask wanted: takes back what HiddenSibling::grant() added
void Staging::set_permissions(std::span<const std::string> old_files) const {
    struct stat model = {};
    bool has_model = false;
    for (const std::string& file : old_files)
        has_model = has_model || (calls.fstatat(old_.number(), file.c_str(), &model, 0) == 0 && S_ISREG(model.st_mode));
    for (const std::string& file : files_) {
        struct stat old = model;
        bool there = has_model;
        if (kind_ == Kind::file) {
            there = replaces_ && calls.fstatat(place_.parent.number(), place_.name.c_str(), &old, 0) == 0 &&
                    S_ISREG(old.st_mode);
        } else if (old_ && calls.fstatat(old_.number(), file.c_str(), &old, 0) == 0) {
            if (S_ISDIR(old.st_mode))
                throw Error(Errc::already_exists,
                            safemap::quoted(file) + " in it is a folder, but a file would be written");
            there = S_ISREG(old.st_mode);
        } else {
            old = model;
        }
        set_permissions(file, old, there);
    }
}

void Staging::set_permissions(const std::string& file, const struct stat& old, bool there) const {
    if (!there && sibling_.denied() == 0) return;
    const char* name = name_in_folder(file);
    struct stat now = {};
    if (calls.fstatat(files_folder(), name, &now, AT_SYMLINK_NOFOLLOW) != 0) throw system_error(errno, "examine it");
    if (there && (old.st_uid != now.st_uid || old.st_gid != now.st_gid)) give_owner(files_folder(), name, old);
    const mode_t wanted = there ? old.st_mode & 07777 : now.st_mode & 07777 & ~sibling_.denied();
    if (wanted != (now.st_mode & 07777) && calls.fchmodat(files_folder(), name, wanted, 0) != 0)
        throw system_error(errno, "set the permissions of " + safemap::quoted(file));
}

/// Gives each inner folder the owner and permissions of the folder that it replaces, or else of the target.
void Staging::set_folder_permissions() const {
    if (!old_) return;
    for (const std::string& name : folders_) {
        struct stat old = {};
        if (calls.fstatat(old_.number(), name.c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0 &&
            calls.fstat(old_.number(), &old) != 0)
            throw system_error(errno, "examine it");
        give_owner(content_.number(), name.c_str(), old);
        if (calls.fchmodat(content_.number(), name.c_str(), (old.st_mode & 07777) | S_IRWXU, 0) != 0)
            throw system_error(errno, "set the permissions of " + safemap::quoted(name));
    }
}

/// Lets every user that may read the replaced folder read the new content, from the moment it counts.
void Staging::open_to_readers() const {
    struct stat old = {};
    if (calls.fstat(old_.number(), &old) != 0) throw system_error(errno, "examine it");
    const auto give = [&](int home, const char* name, int descriptor) {
        give_owner(home, name, old);
        if (calls.fchmod(descriptor, (old.st_mode & 07777) | S_IRWXU) != 0)
            throw system_error(errno, "set the permissions of the new folder");
    };
    give(sibling_.folder(), HiddenSibling::content, content_.number());
    if (inside_) give(old_.number(), HiddenSibling::suffix, sibling_.folder());
}

/// Sets the permissions of the folder itself. Last, because they may forbid moving it.
void Staging::set_final_mode() const {
    if (kind_ != Kind::folder) return;
    struct stat now = {};
    if (!old_) {
        for (const std::string& folder : folders_)
            if (calls.fstatat(content_.number(), folder.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0 ||
                calls.fchmodat(content_.number(), folder.c_str(), now.st_mode & 07777 & ~sibling_.denied(), 0) != 0)
                throw system_error(errno, "set the permissions of " + safemap::quoted(folder));
    }
    if (calls.fstat(content_.number(), &now) != 0) throw system_error(errno, "examine it");
    const mode_t wanted = old_mode_.value_or(now.st_mode & 07777 & ~sibling_.denied());
    if (wanted != (now.st_mode & 07777) && calls.fchmod(content_.number(), wanted) != 0)
        throw system_error(errno, "set its permissions");
}

void Staging::remove_journal() {
    if (journal_) sibling_.remove_file(journal_name);
}

/// Renames the content into place if nothing is at the target.
void Staging::appear() {
    if (kind_ == Kind::folder) sync_content();
    const int parent = place_.parent.number();
    new_identity_ = identity_at(sibling_.folder(), HiddenSibling::content);
    if (new_identity_.empty()) throw system_error(errno, "examine the new content");
    if (calls.renameat2(sibling_.folder(), HiddenSibling::content, parent, place_.name.c_str(), RENAME_NOREPLACE) !=
        0) {
        const int number = errno;
        if (number == EEXIST) place_.require_absent();
        if (!flags_unsupported(number)) throw system_error(number, "rename it into place");
        appear_without_flags();
    }
    state_ = State::appeared;
    sync(parent);
    if (sibling_.denied() != 0) set_final_mode();
    remove_journal();
    sibling_.remove();
    state_ = State::committed;
}

/// Puts the content into place on file systems whose rename always replaces. A file appears by a hard link, which never
/// replaces. A folder, or a file without support for links, is renamed after a second check that the place is free.
void Staging::appear_without_flags() {
    const int sibling = sibling_.folder();
    const int parent = place_.parent.number();
    const char* name = place_.name.c_str();
    if (kind_ == Kind::file) {
        if (calls.linkat(sibling, HiddenSibling::content, parent, name, 0) == 0) {
            if (calls.unlinkat(sibling, HiddenSibling::content, 0) == 0) return;
            const int number = errno;
            calls.unlinkat(parent, name, 0);
            throw system_error(number, "rename it into place");
        }
        if (errno == EEXIST) place_.require_absent();
    }
    place_.require_absent();
    if (calls.renameat2(sibling, HiddenSibling::content, parent, name, 0) != 0)
        throw system_error(errno, "rename it into place");
}

/// Exchanges the content and the target; returns the error number. If the target has been replaced since the save
/// began, takes the exchange back, so that nothing is lost, and throws file_changed.
int Staging::exchange() {
    const auto swap = [this] {
        return calls.renameat2(sibling_.folder(), HiddenSibling::content, place_.parent.number(), place_.name.c_str(),
                               RENAME_EXCHANGE) == 0;
    };
    if (!swap()) return errno;
    state_ = State::exchanged;
    if (identity_at(sibling_.folder(), HiddenSibling::content) == old_identity_) return 0;
    if (swap()) state_ = State::preparing;
    throw Error(Errc::file_changed, "another process replaced it during the save");
}

/// Replaces a file. An exchange can be taken back if flushing fails. If the file system has no exchange, a plain rename
/// replaces the file.
void Staging::exchange_file() {
    const int parent = place_.parent.number();
    list_exchange({});
    const int number = exchange();
    if (number == 0) {
        sync(parent);
        state_ = State::committed;
    } else {
        if (!never_possible(number)) throw system_error(number, "rename it into place");
        if (identity_at(parent, place_.name.c_str()) != old_identity_)
            throw Error(Errc::file_changed, "another process replaced it during the save");
        if (calls.renameat2(sibling_.folder(), HiddenSibling::content, parent, place_.name.c_str(), 0) != 0)
            throw system_error(errno, "rename it into place");
        state_ = State::committed;
        adding([](Error& e) { e.with_hint("the new checkpoint is committed, but may not be on disk yet"); },
               [&] { sync(parent); });
    }
    clear_sibling();
}

/// Replaces a folder by exchange. Returns false if this folder cannot be exchanged; then nothing has changed.
bool Staging::exchange_folder(std::span<const std::string> old_files) {
    if (!link_what_stays(old_files)) return false;
    open_to_readers();
    sync_content();
    list_exchange(old_files);
    const int number = exchange();
    if (number != 0) {
        unlink_what_stays();
        sibling_.remove_file(exchange_list_name);
        if (never_possible(number)) return false;
        throw system_error(number, "exchange it with the new one");
    }
    link_latecomers(old_files);
    sync(place_.parent.number());
    set_final_mode();
    state_ = State::committed;
    clear_sibling();
    return true;
}

/// Makes hard links in the new folder to the files that stay. Returns false if that is impossible.
bool Staging::link_what_stays(std::span<const std::string> old_files) {
    const Linking linking(old_.number(), place_.target);
    if (linking.run(content_.number(), set_of(files_, old_files), linked_)) return true;
    unlink_what_stays();
    return false;
}

void Staging::unlink_what_stays() {
    for (const std::string& file : linked_.files) calls.unlinkat(content_.number(), file.c_str(), 0);
    for (auto folder = linked_.folders.rbegin(); folder != linked_.folders.rend(); ++folder)
        calls.unlinkat(content_.number(), folder->path.c_str(), AT_REMOVEDIR);
    linked_ = {};
}

/// Flushes the new folder and its inner folders. All of them are complete before the first flush, so that one takes
/// most of the others along.
void Staging::sync_content() const {
    sync(content_.number());
    const auto sync_inner = [this](const std::string& path) {
        const Descriptor open = open_inner(content_.number(), path);
        if (!open) throw system_error(errno, "open " + safemap::quoted(path) + " in the new folder");
        sync(open.number());
    };
    for (const std::string& folder : folders_) sync_inner(folder);
    for (const Linked::Folder& folder : linked_.folders) sync_inner(folder.path);
}

/// Writes the exchange list. The process that cleans the sibling after the exchange, this one or another, deletes only
/// files that the list knows. Throws file_changed if the target has changed since the save began.
void Staging::list_exchange(std::span<const std::string> old_files) const {
    using Role = ExchangeList::Role;
    ExchangeList list;
    struct stat status = {};
    if (!place_.status(status) || text_of_whole(status) != old_identity_)
        throw Error(Errc::file_changed, "another process replaced it during the save");
    list.add_whole(Role::goes, status);
    if (calls.fstatat(sibling_.folder(), HiddenSibling::content, &status, AT_SYMLINK_NOFOLLOW) != 0)
        throw system_error(errno, "examine the new content");
    list.add_whole(Role::fresh, status);
    if (kind_ == Kind::folder) {
        for (const std::string& name : files_) list.add(Role::fresh, name, stamp_in(content_.number(), name));
        for (const std::string& folder : folders_) list.add(Role::fresh, folder, stamp_in(content_.number(), folder));
        for (const std::string& file : linked_.files) list.add(Role::stays, file, stamp_in(content_.number(), file));
        for (const auto& [path, before] : linked_.folders) {
            list.add(Role::fresh, path, stamp_in(content_.number(), path));
            list.add(Role::goes, path, before);
        }
        for (const std::string_view name : set_of(files_, old_files))
            list.add(Role::goes, std::string(name), stamp_in(old_.number(), std::string(name)));
    }
    list.write(sibling_.folder(), job_.durable);
}

/// Links files that others put into the old folder after its files were linked. A file that cannot be linked is moved
/// when the old folder is removed.
void Staging::link_latecomers(std::span<const std::string> old_files) const noexcept {
    try {
        const auto goes = set_of(files_, old_files);
        for (const std::string& name : list_all(old_.number(), place_.target))
            if (goes.count(name) == 0) calls.linkat(old_.number(), name.c_str(), content_.number(), name.c_str(), 0);
    } catch (const std::exception&) {
        // The files are not lost.
    }
}

/// Removes the sibling after the commit. The next save removes what cannot be removed now.
void Staging::clear_sibling() {
    if (!sibling_) return;
    try {
        sibling_.remove_content(notes_);
        sibling_.remove_notes();
        sibling_.remove();
    } catch (const std::exception& error) {
        sibling_.abandon();
        notes_.push_back("the replaced files could not be removed, and take space until the next save here: " +
                         std::string(error.what()));
    }
}

void Staging::commit_in_place(std::span<const std::string> old_files) {
    sync_content();
    if (!inside_) {
        // The content was to be exchanged with the folder, so it is on the same file system.
        if (const int number = sibling_.move(old_.number(), HiddenSibling::suffix))
            throw system_error(number, "move the new files into it");
        inside_ = true;
    }
    std::vector<std::string> removed;
    for (const std::string& name : old_files)
        if (std::find(files_.begin(), files_.end(), name) == files_.end()) removed.push_back(name);
    open_to_readers();
    write_commit_list(sibling_.folder(), old_.number(), files_, removed, job_.durable);
    state_ = State::committed;
    try {
        sync(old_.number());  // the entry of the sibling
        finish_commit(old_.number(), job_.durable);
        clear_sibling();
    } catch (Error& error) {
        sibling_.abandon();
        throw error.with_hint(
            "the new checkpoint is committed: safemap reads it, and the next save into this folder finishes the "
            "move; other programs may see a mix of old and new files");
    }
}

/// Returns true if the target is still the content that appeared, and no other file has been put into it.
bool Staging::is_only_ours() const {
    if (identity_at(place_.parent.number(), place_.name.c_str()) != new_identity_) return false;
    if (kind_ == Kind::file) return true;
    try {
        if (!holds_only_ours(content_.number(), {})) return false;
        return std::all_of(folders_.begin(), folders_.end(), [this](const std::string& name) {
            const Descriptor folder = open_inner(content_.number(), name);
            return folder && holds_only_ours(folder.number(), name + '/');
        });
    } catch (const std::exception&) {
        return false;
    }
}

bool Staging::holds_only_ours(int folder, const std::string& prefix) const {
    const auto ours = set_of(files_, folders_);
    const auto names = list_all(folder, place_.target);
    return std::all_of(names.begin(), names.end(),
                       [&](const std::string& name) { return ours.count(prefix + name) != 0; });
}

Staging::~Staging() {
    if (state_ == State::committed) return;
    if (state_ == State::published || state_ == State::kept) {
        sibling_.abandon();
        return;
    }
    const int parent = place_.parent.number();
    const char* name = place_.name.c_str();
    // The rename succeeded, but may not be on the disk. The caller got an error, so take the content back.
    if (state_ == State::appeared && is_only_ours())
        calls.renameat2(parent, name, sibling_.folder(), HiddenSibling::content, 0);
    if (state_ == State::exchanged &&
        calls.renameat2(sibling_.folder(), HiddenSibling::content, parent, name, RENAME_EXCHANGE) != 0) {
        sibling_.abandon();  // its content is not ours
        return;
    }
    if (content_ && sibling_.denied() != 0) calls.fchmod(content_.number(), S_IRWXU);
}

}  // namespace safemap::SAFEMAP_ABI::io
