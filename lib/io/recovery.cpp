// Recovers what dead saves have left. From top to bottom:
//   take_published(), claim_sibling()   finish or resume the save of a dead process, and claim the sibling
//   Clearing                            decides for each file in the content of a sibling: if it belongs to the
//                                       save, it is deleted; if not, it is moved. A folder of the save may have got
//                                       files from others, so it is removed when it is empty.
#include "io/recovery.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/exchange.hpp"
#include "io/listing.hpp"
#include "io/note.hpp"
#include "io/pending_save.hpp"
#include "io/system.hpp"

#include <fcntl.h>
#include <linux/fs.h>

#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

/// Keeps the finished files of a dead process's content. Returns false if it has not saved this job.
bool resume(PendingSave& save, const HiddenSibling& dead, Descriptor& content) {
    std::vector<std::string> done;
    save.journal = Journal::resume(dead.folder(), content.number(), save.job, done, save.durable);
    if (!save.journal) return false;
    save.finished.insert(done.begin(), done.end());
    return true;
}

bool continue_old(PendingSave& save, const HiddenSibling& dead) {
    // After an exchange, the content may be the old folder.
    struct stat status = {};
    if (calls.fstatat(dead.folder(), exchange_list_name, &status, AT_SYMLINK_NOFOLLOW) == 0) return false;
    Descriptor content = open_inner(dead.folder(), HiddenSibling::content);
    if (!content || !resume(save, dead, content)) return false;
    save.content = std::move(content);
    remove_unfinished(save);
    dead.remove_token();
    return true;
}

HiddenSibling recover_or_claim(PendingSave& save, int home, const std::string& name) {
    if (save.resume && !save.job.empty() && save.is_folder()) {
        HiddenSibling dead = HiddenSibling::recover_abandoned(home, name);
        try {
            if (dead && continue_old(save, dead)) return dead;
            if (dead) dead.remove_content(save.notes);
        } catch (...) {
            // The next attempt may succeed. This save may go on elsewhere, without what that one has finished.
            save.content = {};
            save.journal = {};
            save.finished.clear();
            dead.abandon();
            throw;
        }
    }
    return HiddenSibling::claim(home, name, save.notes, save.durable);
}

/// Removes the sibling that a dead save left beside the folder, at a time when the folder could be exchanged. This save
/// does not need that place, so an error is ignored.
void clear_beside(PendingSave& save, const std::string& name) {
    try {
        HiddenSibling::clear(save.place.parent.number(), name, save.notes);
    } catch (const Error&) {
    }
}

/// `prefix` is the path of the open `folder` in the content.
void remove_unfinished(const PendingSave& save, int folder, const std::string& prefix) {
    for (const std::string& name : list_all(folder, save.target)) {
        const std::string path = prefix + name;
        if (save.finished.count(path) != 0) continue;
        const auto below = save.finished.lower_bound(path + '/');
        if (below == save.finished.end() || !below->starts_with(path + '/')) {
            remove_all(folder, name);
            continue;
        }
        const Descriptor inner = open_inner(folder, name);
        if (!inner) throw system_error(errno, "open " + safemap::quoted(path) + ", which an interrupted save left");
        remove_unfinished(save, inner.number(), path + '/');
    }
}

}  // namespace

void remove_unfinished(const PendingSave& save) { remove_unfinished(save, save.content.number(), {}); }

bool take_published(PendingSave& save) {
    struct stat found = {};
    const std::string name = '.' + save.place.name + HiddenSibling::suffix;
    const int parent = save.place.parent.number();
    if (!save.resume || save.job.empty() || !save.is_folder() || !save.place.status(found) || !S_ISDIR(found.st_mode) ||
        calls.fstatat(parent, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    HiddenSibling dead = HiddenSibling::recover_abandoned(parent, name);
    if (!dead) return false;
    try {
        const bool has_content = calls.fstatat(dead.folder(), HiddenSibling::content, &found, AT_SYMLINK_NOFOLLOW) == 0;
        Descriptor published = open_inner(parent, save.place.name);
        if (has_content || !published || !resume(save, dead, published) || save.finished.empty()) {
            save.journal = {};
            dead.abandon();
            return false;
        }
        dead.remove_token();
        save.content = std::move(published);
        save.sibling = std::move(dead);
        save.state = PendingSave::State::published;
        return true;
    } catch (...) {
        dead.abandon();
        throw;
    }
}

void finish_published(PendingSave& save) {
    save.sync(save.place.parent.number());
    save.sibling.remove_file(journal_name);
    save.sibling.remove();
    save.state = PendingSave::State::committed;
}

void claim_sibling(PendingSave& save) {
    const int parent = save.place.parent.number();
    const std::string beside = '.' + save.place.name + HiddenSibling::suffix;
    if (!save.old) {
        save.sibling = recover_or_claim(save, parent, beside);
        return;
    }
    const int target = save.old.number();
    if (!save.resume) HiddenSibling::clear(target, HiddenSibling::suffix, save.notes);
    // The working directory is replaced in place: an exchange would leave the processes in it in the old folder.
    save.inside = calls.is_mount_root(target) || identity_at(AT_FDCWD, ".") == save.old_identity ||
                  !Linking(target, save.target).is_possible();
    if (!save.inside) {
        try {
            save.sibling = recover_or_claim(save, parent, beside);
            return;
        } catch (const Error& error) {
            if (error.code() != Errc::permission_denied) throw;
            save.inside = true;
        }
    }
    clear_beside(save, beside);
    save.sibling = recover_or_claim(save, target, HiddenSibling::suffix);
}

namespace {

constexpr int most_names = 1000;
constexpr int most_rounds = 3;  // while others keep writing into an old folder

bool same_file(int folder, int other_folder, const std::string& name) {
    struct stat one = {};
    struct stat other = {};
    return calls.fstatat(folder, name.c_str(), &one, AT_SYMLINK_NOFOLLOW) == 0 &&
           calls.fstatat(other_folder, name.c_str(), &other, AT_SYMLINK_NOFOLLOW) == 0 && same_inode(one, other);
}

/// Renames without replacing anything. Returns the error number, 0 for success.
int move(int from, const std::string& name, int to, const std::string& new_name) {
    if (calls.renameat2(from, name.c_str(), to, new_name.c_str(), RENAME_NOREPLACE) == 0) return 0;
    if (!flags_unsupported(errno)) return errno;
    struct stat there = {};
    if (calls.fstatat(to, new_name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
    if (errno != ENOENT) return errno;
    return calls.renameat2(from, name.c_str(), to, new_name.c_str(), 0) == 0 ? 0 : errno;
}

class Clearing {
public:
    Clearing(int home, const std::string& name, int sibling, std::vector<std::string>& notes)
        : home_(home), name_(name), sibling_(sibling), notes_(notes) {
        const std::size_t around = std::string_view(HiddenSibling::suffix).size() + 1;  // plus the dot before the name
        if (name.size() > around) target_name_ = name.substr(1, name.size() - around);
    }

    void run() {
        struct stat status = {};
        if (calls.fstatat(sibling_, HiddenSibling::content, &status, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) return;
            throw failed(HiddenSibling::content);
        }
        // Without a list there was no exchange, so the save has written all of the content.
        list_ = ExchangeList::read(sibling_);
        if (list_ && !list_->knows_whole(status)) return set_aside();
        if (!list_ || !S_ISDIR(status.st_mode)) return remove_all(sibling_, HiddenSibling::content);
        target_ = open_inner(home_, target_name_);
        if (!clear_folder(sibling_, HiddenSibling::content, target_.number(), {}, status)) set_aside();
    }

private:
    Error failed(std::string_view what) const {
        return system_error(errno, "remove " + safemap::quoted(what) + " in " + safemap::quoted(name_));
    }

    /// Removes a folder of the content with the save's files in it, and moves the other files to the open folder
    /// `target`. Returns false if something must stay in the folder.
    bool clear_folder(int home, const std::string& name, int target, const std::string& prefix,
                      const struct stat& status) {
        for (int round = 0; round < most_rounds; ++round) {
            if (calls.unlinkat(home, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
            if (!means_not_empty(errno)) throw failed(name);
            const Descriptor folder = open_inner(home, name);
            if (!folder) throw failed(name);
            require_same(folder.number(), name, status);
            bool all = true;
            for (const std::string& entry : list_all(folder.number(), name_))
                all = clear_entry(folder.number(), entry, target, prefix + entry) && all;
            if (!all) return false;
        }
        errno = ENOTEMPTY;
        throw failed(name);
    }

    /// Throws if `folder` is no longer the folder of `status`: another process may have moved or mounted another one
    /// there.
    void require_same(int folder, const std::string& name, const struct stat& status) const {
        struct stat now = {};
        if (calls.fstat(folder, &now) != 0) throw failed(name);
        if (same_inode(now, status)) return;
        errno = EBUSY;
        throw failed(name);
    }

    /// Removes or moves one entry. Returns false if the entry must stay.
    bool clear_entry(int folder, const std::string& name, int target, const std::string& path) {
        struct stat status = {};
        if (calls.fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno == ENOENT) return true;
            throw failed(path);
        }
        const bool known = list_->knows(path, stamp_of(status));
        if (S_ISDIR(status.st_mode)) {
            const Descriptor inner = target < 0 ? Descriptor() : open_inner(target, name);
            // An unknown folder may be merged into the target's folder of that name.
            if ((known || inner) && clear_folder(folder, name, inner.number(), path + '/', status)) return true;
            return put_back(folder, name, target, path);
        }
        if (!known && !(target >= 0 && same_file(folder, target, name))) return put_back(folder, name, target, path);
        if (calls.unlinkat(folder, name.c_str(), 0) != 0 && errno != ENOENT) throw failed(path);
        return true;
    }

    bool put_back(int folder, const std::string& name, int target, const std::string& path) {
        if (target < 0) return false;
        int number = move(folder, name, target, name);
        // The target has a hard link to the previous file. Another process has replaced that file here since, so this
        // one is newer.
        if (number == EEXIST && list_->knows(path, stamp_in(target, name), ExchangeList::Role::stays))
            number = calls.renameat2(folder, name.c_str(), target, name.c_str(), 0) == 0 ? 0 : errno;
        // EEXIST, or ENOTDIR: a folder takes the place of a file.
        if (number == EEXIST || number == ENOTDIR) {
            const std::optional<std::string> beside = move_beside(folder, name, target, name, number);
            if (beside)
                notes_.push_back(safemap::quoted(path) +
                                 " was written by another process during the save, and is now named " +
                                 safemap::quoted(*beside));
        }
        if (number == 0 || number == ENOENT) return true;
        if (number == ENAMETOOLONG) return false;
        throw system_error(number, "put back " + safemap::quoted(path) + " from " + safemap::quoted(name_));
    }

    void set_aside() {
        int number = 0;
        const auto name = move_beside(sibling_, HiddenSibling::content, home_, target_name_, number);
        if (!name) throw system_error(number, "move files of another process out of " + safemap::quoted(name_));
        notes_.push_back("another process wrote " + safemap::quoted(target_name_) +
                         " during the save; its version is now named " + safemap::quoted(*name));
    }

    /// Moves a file or folder to the first free name: NAME.saved-1, NAME.saved-2, and so on. Returns the name, or
    /// nothing and the error number.
    static std::optional<std::string> move_beside(int from, const std::string& name, int to,
                                                  const std::string& new_name, int& number) {
        for (int i = 1; i < most_names; ++i) {
            std::string candidate = new_name + ".saved-" + std::to_string(i);
            number = move(from, name, to, candidate);
            if (number == 0) return candidate;
            if (number != EEXIST) break;
        }
        return std::nullopt;
    }

    int home_;
    std::string name_;
    int sibling_;
    std::vector<std::string>& notes_;
    std::string target_name_ = {};
    std::optional<ExchangeList> list_ = {};
    Descriptor target_ = {};  ///< the folder that the content replaces or has replaced
};

}  // namespace

void remove_all(int folder, const std::string& name) {
    const auto removed = [&](int flags) { return calls.unlinkat(folder, name.c_str(), flags) == 0 || errno == ENOENT; };
    const auto failed = [&] { return system_error(errno, "remove " + safemap::quoted(name) + ", which a save left"); };
    if (removed(0)) return;
    if (errno != EISDIR) throw failed();
    if (removed(AT_REMOVEDIR)) return;
    if (!means_not_empty(errno)) throw failed();
    const Descriptor inner = open_inner(folder, name);
    if (!inner) throw failed();
    for (const std::string& entry : list_all(inner.number(), name)) remove_all(inner.number(), entry);
    if (!removed(AT_REMOVEDIR)) throw failed();
}

void clear_content(int home, const std::string& name, int sibling, std::vector<std::string>& notes) {
    Clearing(home, name, sibling, notes).run();
}

}  // namespace safemap::SAFEMAP_ABI::io
