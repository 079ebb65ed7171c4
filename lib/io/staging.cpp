// Fills a hidden sibling and then puts its content in place of the target.
//   1. The target: what is there, and its identity.
//   2. Preparing: finish, resume or remove what a dead save left (recovery.hpp), and claim the sibling; then create
//      files in it.
//   3. Committing: set owners and permissions, then, depending on the target:
//        - nothing is there: appear() renames the content into place
//        - a file: exchange_file() exchanges the two
//        - a folder: exchange_folder() exchanges it with the content, which has links to the files that stay
//        - a folder that cannot be exchanged: commit_in_place() moves file by file, under a list that the next save can
//          finish
//   4. The end: the destructor removes or takes back what was not committed, if it is only ours. Before the commit,
//      keep_finished() leaves the finished files to the next save instead.
#include "io/staging.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/exchange.hpp"
#include "io/file.hpp"
#include "io/in_place.hpp"
#include "io/recovery.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

namespace {

/// Returns a name for a job whose files may not be on the disk. The name changes at each boot, so a save after that
/// does not resume the job. Returns an empty name if the system has no boot id.
std::string until_next_boot(const std::string& job) {
    const std::string boot = job.empty() ? std::string() : calls.boot_id();
    return boot.empty() ? std::string() : job + " in boot " + boot;
}

}  // namespace

void require_absent(const std::filesystem::path& target) { Place(target, false).require_absent(); }

// ---- preparing

Staging::Staging(const std::filesystem::path& target, Kind kind, Existing existing, StagingOptions job)
    : save_{{.kind = kind, .durable = job.durable},
            Place(target, existing != Existing::refuse && kind == Kind::folder),
            job.durable ? std::move(job.id) : until_next_boot(job.id),
            job.resume},
      merges_(existing == Existing::merge) {
    save_.target = save_.place.target;
    about_file(save_.target, [&] {
        // Finish a save that died during its commit: its files count already, and one of them may have the target's
        // name.
        const int parent = save_.place.parent.number();
        if (kind == Kind::file && read_commit_list(parent))
            HiddenSibling::clear(parent, HiddenSibling::suffix, save_.notes);
        if (existing != Existing::refuse) examine_old(job.replaced);
        else if (take_published(save_)) return;
        else save_.place.require_absent();
        claim_sibling(save_);
        create_content();
    });
    save_.home = save_.is_folder() ? save_.content.number() : save_.sibling.folder();
}

/// Examines the file or folder to replace, if there is one.
void Staging::examine_old(const std::string& replaced) {
    struct stat found = {};
    const int parent = save_.place.parent.number();
    const char* const name = save_.place.name.c_str();
    save_.replaces = save_.place.status(found);
    if (!save_.replaces) return;
    const bool folder = S_ISDIR(found.st_mode);
    if (save_.is_folder() && !folder)
        throw Error(Errc::already_exists, "it is not a folder, but a folder would be written");
    if (!save_.is_folder() && !S_ISREG(found.st_mode) && !S_ISLNK(found.st_mode))
        throw Error(Errc::already_exists, folder ? "it is a folder, but a file would be written"
                                                 : "it is neither a file nor a folder, and is not replaced");
    if (S_ISLNK(found.st_mode)) {
        struct stat target = {};
        if (calls.fstatat(parent, name, &target, 0) == 0 && S_ISREG(target.st_mode)) found = target;
    }
    if (!replaced.empty() && lasting_text_of(identity_of(found)) != replaced)
        throw Error(Errc::file_changed, "it was changed after it was read");
    if (!S_ISLNK(found.st_mode)) save_.old_mode = found.st_mode & 07777;
    save_.old_identity = identity_at(parent, name);
    if (!folder) return;
    if (calls.faccessat(parent, name, W_OK | X_OK, AT_EACCESS) != 0)
        throw system_error(errno, "write into it").with_hint("save to another folder, or change its permissions");
    save_.old = open_inner(parent, name);
    if (!save_.old) throw system_error(errno, "open it");
    lock_old();
}

/// Locks the folder itself: two writers may have chosen different places for their siblings.
void Staging::lock_old() const {
    if (uninterrupted([&] { return calls.flock(save_.old.number(), LOCK_EX | LOCK_NB); }) == 0) return;
    if (errno == EWOULDBLOCK) throw Error(Errc::busy, "another process is saving to it");
    // Not an error: some file systems cannot lock folders.
}

void Staging::create_content() {
    if (!save_.is_folder() || save_.content) return;
    const int sibling = save_.sibling.folder();
    if (calls.mkdirat(sibling, HiddenSibling::content, 0777) != 0) throw system_error(errno, "create the new folder");
    save_.sibling.grant(sibling, HiddenSibling::content);
    save_.content = open_inner(sibling, HiddenSibling::content);
    if (!save_.content) throw system_error(errno, "open the new folder");
    if (!save_.job.empty()) save_.journal = Journal::begin(sibling, save_.job, save_.durable);
}

bool Staging::adopt(const std::string& name) {
    if (save_.finished.count(name) == 0) return false;
    save_.ours.files.push_back(name);
    return true;
}

void Staging::finished(const std::string& name) {
    if (!save_.journal) return;
    const std::lock_guard lock(journaling_);
    save_.journal.add(save_.content.number(), name);
    save_.finished.insert(name);
}

std::size_t Staging::keep_finished() noexcept {
    if (save_.state == PendingSave::State::published) return save_.finished.size();
    if (save_.state != PendingSave::State::preparing || !save_.journal || save_.finished.empty()) return 0;
    save_.state = PendingSave::State::kept;
    try {
        remove_unfinished(save_);
        save_.sibling.remove_token();
    } catch (const std::exception&) {
        // The next save removes it.
    }
    return save_.finished.size();
}

void Staging::add_folder(const std::string& name) {
    struct stat there = {};
    if (save_.old && calls.fstatat(save_.old.number(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISDIR(there.st_mode))
        throw Error(Errc::already_exists,
                    safemap::quoted(name) + " in it is not a folder, but a folder would be written");
    save_.ours.folders.push_back(name);
    if (save_.state == PendingSave::State::published) return;
    // EEXIST: a dead process may have created it.
    if (calls.mkdirat(save_.content.number(), name.c_str(), 0777) != 0 && errno != EEXIST)
        throw system_error(errno, "create the folder " + safemap::quoted(name));
    save_.sibling.grant(save_.content.number(), name.c_str());
}

OutputFile Staging::add(const std::string& name) {
    if (save_.state == PendingSave::State::published) save_.place.require_absent();  // it was changed since
    save_.ours.files.push_back(name);
    const char* const in_folder = save_.name_in_folder(name);
    OutputFile file = OutputFile::create(save_.home, in_folder, save_.durable);
    if (save_.sibling.denied() != 0) save_.sibling.grant(save_.home, in_folder);
    return file;
}

std::string Staging::open_to_others() {
    return about_file(save_.target, [&] {
        const std::string token = new_token();
        has_token_ = true;
        put_token(save_.sibling.folder(), token, save_.durable);
        const bool published = save_.state == PendingSave::State::published;
        return std::string(published ? "published" : save_.inside ? "inside" : "beside") + ' ' + token;
    });
}

// ---- committing

void Staging::commit(std::span<const std::string> old_files) {
    about_file(save_.target, [&] {
        if (std::exchange(has_token_, false)) save_.sibling.remove_token();
        if (save_.state == PendingSave::State::published) return finish_published(save_);
        save_.ours.old.assign(old_files.begin(), old_files.end());
        set_permissions(save_);
        if (save_.old) {
            if (merges_) require_free();
            if (save_.inside || !exchange_folder(save_)) commit_in_place(save_);
            return;
        }
        if (save_.replaces) exchange_file(save_);
        else appear(save_);
    });
}

/// Throws if a file with one of the new names has appeared in the folder since the save began.
void Staging::require_free() const {
    for (const std::string& name : save_.ours.files) {
        struct stat status = {};
        if (calls.fstatat(save_.old.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
            throw Error(Errc::already_exists,
                        safemap::quoted(name) + " appeared in the folder, which had no checkpoint when the save began");
        if (errno != ENOENT) throw system_error(errno, "examine " + safemap::quoted(name));
    }
}

Staging::~Staging() {
    if (save_.state == PendingSave::State::committed) return;
    if (save_.state == PendingSave::State::published || save_.state == PendingSave::State::kept)
        save_.sibling.abandon();
    else take_back(save_);
}

}  // namespace safemap::SAFEMAP_ABI::io
