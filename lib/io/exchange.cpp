// Exchanges the content and the target of a save. From top to bottom:
//   ExchangeList                        NUL-terminated lines: the version; the inode of the list itself; pairs of
//                                       a role with a path and a stamp; "end"
//   appear()                            renames the content to a free place
//   exchange_file(), exchange_folder()  list, then exchange; what stays in a folder is linked before
//   take_back()                         after an error
#include "io/exchange.hpp"

#include "base/faults.hpp"
#include "io/calls.hpp"
#include "io/listing.hpp"
#include "io/note.hpp"
#include "io/pending_save.hpp"
#include "io/system.hpp"

#include <fcntl.h>
#include <linux/fs.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::string_view first_text = "safemap exchange 1";
constexpr std::string_view last_text = "end";
constexpr std::string_view called = "the exchange list";

/// Returns the inode alone for a folder: a folder's size and time change with every file in it.
std::string stamp_of_whole(const struct stat& status) {
    return S_ISDIR(status.st_mode) ? std::to_string(status.st_ino) : stamp_of(status);
}

std::vector<std::string> texts_of(std::string_view text) {
    std::vector<std::string> lines;
    for (std::size_t end = text.find('\0'); end != text.npos; end = text.find('\0')) {
        lines.emplace_back(text.substr(0, end));
        text.remove_prefix(end + 1);
    }
    if (!text.empty()) lines.clear();  // truncated
    return lines;
}

}  // namespace

void ExchangeList::add_whole(Role role, const struct stat& status) { add(role, {}, stamp_of_whole(status)); }

void ExchangeList::add(Role role, const std::string& path, const std::string& stamp) {
    if (!stamp.empty()) entries_.emplace(path, Entry{role, stamp});
}

bool ExchangeList::knows_whole(const struct stat& status) const {
    if (S_ISDIR(status.st_mode) && !inodes_last_) return true;
    return knows({}, stamp_of_whole(status));
}

bool ExchangeList::knows(const std::string& path, const std::string& stamp, std::optional<Role> role) const {
    const auto [begin, end] = entries_.equal_range(path);
    return std::any_of(begin, end, [&](const auto& entry) {
        return (!role || entry.second.role == role) && same_stamp(entry.second.stamp, stamp, inodes_last_);
    });
}

void ExchangeList::write(int sibling, bool durable) const {
    put_note(sibling, exchange_list_name, new_exchange_list_name, std::nullopt, called, durable, [this](int note) {
        std::string text(first_text);
        text += '\0';
        text.append(inode_text(note)) += '\0';
        for (const auto& [path, entry] : entries_) {
            (text += static_cast<char>(entry.role)).append(path) += '\0';
            text.append(entry.stamp) += '\0';
        }
        (text += last_text) += '\0';
        return text;
    });
}

std::optional<ExchangeList> ExchangeList::read(int sibling) {
    const Descriptor note = open_at(sibling, exchange_list_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!note) {
        if (errno == ENOENT) return std::nullopt;
        throw system_error(errno, "open " + std::string(called));
    }
    const std::vector<std::string> lines = texts_of(read_note(note.number(), called));
    ExchangeList list;
    if (lines.size() < 3 || lines.size() % 2 == 0 || lines[0] != first_text || lines.back() != last_text) return list;
    list.inodes_last_ = inode_lasted(note.number(), lines[1]);
    for (std::size_t i = 2; i + 1 < lines.size(); i += 2) {
        if (lines[i].empty()) return ExchangeList();
        list.add(static_cast<Role>(lines[i].front()), lines[i].substr(1), lines[i + 1]);
    }
    return list;
}

// ---- to a free place

namespace {

/// Renames the content to the target, which must not exist unless flags say otherwise.
bool rename_content(const PendingSave& save, unsigned flags) {
    return calls.renameat2(save.sibling.folder(), HiddenSibling::content, save.place.parent.number(),
                           save.place.name.c_str(), flags) == 0;
}

/// Puts the content into place on file systems whose rename always replaces. A file appears by a hard link, which never
/// replaces. A folder, or a file without support for links, is renamed after a second check that the place is free.
void appear_without_flags(const PendingSave& save) {
    const int sibling = save.sibling.folder();
    const int parent = save.place.parent.number();
    const char* name = save.place.name.c_str();
    if (!save.is_folder()) {
        if (calls.linkat(sibling, HiddenSibling::content, parent, name, 0) == 0) {
            if (calls.unlinkat(sibling, HiddenSibling::content, 0) == 0) return;
            const int number = errno;
            calls.unlinkat(parent, name, 0);
            throw system_error(number, "rename it into place");
        }
        if (errno == EEXIST) save.place.require_absent();
    }
    save.place.require_absent();
    if (!rename_content(save, 0)) throw system_error(errno, "rename it into place");
}

}  // namespace

void appear(PendingSave& save) {
    if (save.is_folder()) save.sync_content();
    save.new_identity = identity_at(save.sibling.folder(), HiddenSibling::content);
    if (save.new_identity.empty()) throw system_error(errno, "examine the new content");
    if (!rename_content(save, RENAME_NOREPLACE)) {
        const int number = errno;
        if (number == EEXIST) save.place.require_absent();
        if (!flags_unsupported(number)) throw system_error(number, "rename it into place");
        appear_without_flags(save);
    }
    save.state = PendingSave::State::appeared;
    save.sync(save.place.parent.number());
    if (save.sibling.denied() != 0) set_final_mode(save);
    if (save.journal) save.sibling.remove_file(journal_name);
    save.sibling.remove();
    save.state = PendingSave::State::committed;
}

// ---- exchange

namespace {

Error replaced_meanwhile() { return Error(Errc::file_changed, "another process replaced it during the save"); }

/// Exchanges the content and the target; returns the error number. If the target has been replaced since the save
/// began, takes the exchange back, so that nothing is lost, and throws file_changed.
int exchange(PendingSave& save) {
    if (!rename_content(save, RENAME_EXCHANGE)) return errno;
    save.state = PendingSave::State::exchanged;
    if (identity_at(save.sibling.folder(), HiddenSibling::content) == save.old_identity) return 0;
    if (rename_content(save, RENAME_EXCHANGE)) save.state = PendingSave::State::preparing;
    throw replaced_meanwhile();
}

/// Writes the exchange list. The process that cleans the sibling after the exchange, this one or another, deletes only
/// files that the list knows.
void list_exchange(const PendingSave& save) {
    using Role = ExchangeList::Role;
    ExchangeList list;
    struct stat status = {};
    if (!save.place.status(status) || text_of_whole(status) != save.old_identity) throw replaced_meanwhile();
    list.add_whole(Role::goes, status);
    if (calls.fstatat(save.sibling.folder(), HiddenSibling::content, &status, AT_SYMLINK_NOFOLLOW) != 0)
        throw system_error(errno, "examine the new content");
    list.add_whole(Role::fresh, status);
    if (save.is_folder()) {
        const auto add = [&](Role role, const std::string& path) {
            list.add(role, path, stamp_in(save.content.number(), path));
        };
        for (const std::string& name : save.ours.files) add(Role::fresh, name);
        for (const std::string& folder : save.ours.folders) add(Role::fresh, folder);
        for (const std::string& file : save.ours.linked.files) add(Role::stays, file);
        for (const auto& [path, before] : save.ours.linked.folders) {
            add(Role::fresh, path);
            list.add(Role::goes, path, before);
        }
        for (const std::string_view name : save.ours.replaced())
            list.add(Role::goes, std::string(name), stamp_in(save.old.number(), std::string(name)));
    }
    list.write(save.sibling.folder(), save.durable);
}

void unlink_what_stays(PendingSave& save) {
    Linked& linked = save.ours.linked;
    for (const std::string& file : linked.files) calls.unlinkat(save.content.number(), file.c_str(), 0);
    for (auto folder = linked.folders.rbegin(); folder != linked.folders.rend(); ++folder)
        calls.unlinkat(save.content.number(), folder->path.c_str(), AT_REMOVEDIR);
    linked = {};
}

/// Links files that others put into the old folder after its files were linked. A file that cannot be linked is moved
/// when the old folder is removed.
void link_latecomers(const PendingSave& save) noexcept {
    try {
        const auto replaced = save.ours.replaced();
        for (const std::string& name : list_all(save.old.number(), save.target))
            if (replaced.count(name) == 0)
                calls.linkat(save.old.number(), name.c_str(), save.content.number(), name.c_str(), 0);
    } catch (const std::exception&) {
        // The files are not lost.
    }
}

}  // namespace

void exchange_file(PendingSave& save) {
    const int parent = save.place.parent.number();
    list_exchange(save);
    const int number = exchange(save);
    if (number == 0) {
        save.sync(parent);
        save.state = PendingSave::State::committed;
    } else {
        if (!never_possible(number)) throw system_error(number, "rename it into place");
        if (identity_at(parent, save.place.name.c_str()) != save.old_identity) throw replaced_meanwhile();
        if (!rename_content(save, 0)) throw system_error(errno, "rename it into place");
        save.state = PendingSave::State::committed;
        adding([](Error& e) { e.with_hint("the new checkpoint is committed, but may not be on disk yet"); },
               [&] { save.sync(parent); });
    }
    save.clear_sibling();
}

bool exchange_folder(PendingSave& save) {
    if (!Linking(save.old.number(), save.target).run(save.content.number(), save.ours.replaced(), save.ours.linked)) {
        unlink_what_stays(save);
        return false;
    }
    open_to_readers(save);
    save.sync_content();
    list_exchange(save);
    const int number = exchange(save);
    if (number != 0) {
        unlink_what_stays(save);
        save.sibling.remove_file(exchange_list_name);
        if (never_possible(number)) return false;
        throw system_error(number, "exchange it with the new one");
    }
    link_latecomers(save);
    save.sync(save.place.parent.number());
    set_final_mode(save);
    save.state = PendingSave::State::committed;
    save.clear_sibling();
    return true;
}

void take_back(PendingSave& save) noexcept {
    const int parent = save.place.parent.number();
    const char* name = save.place.name.c_str();
    // The rename succeeded, but may not be on the disk. The target may no longer be the content, or only ours.
    if (save.state == PendingSave::State::appeared && identity_at(parent, name) == save.new_identity &&
        (!save.is_folder() || save.ours.is_all_of(save.content.number(), save.target)))
        calls.renameat2(parent, name, save.sibling.folder(), HiddenSibling::content, 0);
    if (save.state == PendingSave::State::exchanged && !rename_content(save, RENAME_EXCHANGE))
        return save.sibling.abandon();  // its content is not ours
    if (save.content && save.sibling.denied() != 0) calls.fchmod(save.content.number(), S_IRWXU);
}

}  // namespace safemap::SAFEMAP_ABI::io
