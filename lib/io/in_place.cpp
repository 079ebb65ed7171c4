// Commits in place: reads, checks, writes and carries out commit lists. The format is NUL-terminated lines:
// 1. the version
// 2. the inode of the list itself
// 3. pairs of lines: "+" and a name to move, or "-" and a name to remove; then the stamp of the old file of that name
// 4. "end"
// A list is renamed into place when it is complete. Version 3 may have paths through folders, which are made when
// needed; version 2 has only names. Version 1 is still read: it has no second line, and its stamps begin with the
// device number. From top to bottom:
//   - require_replaceable(), require_removable(), require_current(): check that the folder has not changed.
//   - read_all(), parse(): from the open list to a CommitList.
//   - Home, make_folder(), move_file(), move_files(): carry out the list, and flush before the last file is moved.
//   - The public functions: write_commit_list(), read_commit_list(), finish_commit().
//   - commit_in_place(): a save that does all of this.
#include "io/in_place.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/file.hpp"
#include "io/note.hpp"
#include "io/output.hpp"
#include "io/pending_save.hpp"

#include <fcntl.h>
#include <linux/fs.h>

#include <algorithm>
#include <set>
#include <span>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::string_view first_line = "safemap commit 2";
constexpr std::string_view first_line_3 = "safemap commit 3";
constexpr std::string_view first_line_1 = "safemap commit 1";
constexpr std::string_view last_line = "end";
constexpr std::uint64_t largest_list = 256 << 20;

// The path of the list relative to the folder, composed of HiddenSibling::suffix and commit_list_name.
constexpr const char* list_path = ".safemap-tmp/commit";

constexpr std::string_view damaged_hint =
    "do not delete .safemap-tmp: it may have the only copy of new files. To read the folder as it is now, move "
    ".safemap-tmp out of it";

Error damaged(const std::string& what) {
    Error error(Errc::commit_list_damaged,
                std::string(list_path) + " lists how to finish an interrupted save, but " + what);
    error.with_hint(damaged_hint);
    return error;
}

bool is_staged(int folder, const std::string& name) {
    return !stamp_in(folder, std::string(staged_content) + '/' + name).empty();
}

Error written_to(const std::string& name) {
    return damaged(safemap::quoted(name) + " has changed since that save was interrupted");
}

/// Throws if a file that is to be replaced has changed since the list was made. Another process may carry out the same
/// list at the same time; its moves are not an error, hence the second is_staged().
void require_replaceable(int folder, const CommitList& list, const CommitList::Entry& entry) {
    const auto& [name, before] = entry;
    if (is_staged(folder, name) && !same_stamp(before, stamp_in(folder, name), list.inodes_last) &&
        is_staged(folder, name))
        throw written_to(name);
}

/// Throws if a file that is to be removed has changed since the list was made.
void require_removable(int folder, const CommitList& list, const CommitList::Entry& entry) {
    const std::string now = stamp_in(folder, entry.name);
    if (!now.empty() && !same_stamp(entry.before, now, list.inodes_last)) throw written_to(entry.name);
}

/// Throws if the folder has changed since the list was made.
void require_current(int folder, const CommitList& list) {
    for (const CommitList::Entry& entry : list.files) {
        require_replaceable(folder, list, entry);
        if (!is_staged(folder, entry.name) && stamp_in(folder, entry.name).empty())
            throw damaged(safemap::quoted(entry.name) + " is neither staged nor in the folder");
    }
    for (const CommitList::Entry& entry : list.removed) require_removable(folder, list, entry);
}

/// Returns true if the open list has been carried out and removed. Then the folder, and even the content, may belong to
/// a later save.
bool is_done(int file) {
    struct stat status = {};
    return calls.fstat(file, &status) == 0 && status.st_nlink == 0;
}

/// Throws unless `number`, the error of opening the list, means that there is no list for this reader.
void require_none(int folder, int number) {
    if (means_absent(number)) return;
    // Other users cannot look into a sibling before its content counts.
    if (number == EACCES && calls.faccessat(folder, HiddenSibling::suffix, X_OK, AT_EACCESS) != 0 && errno == EACCES)
        return;
    throw system_error(number, std::string("open ") + list_path);
}

std::string read_all(int file) {
    struct stat status = {};
    if (calls.fstat(file, &status) != 0) throw system_error(errno, std::string("examine ") + list_path);
    if (!S_ISREG(status.st_mode)) throw damaged("it is not a regular file");
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size > largest_list) throw damaged("it is too large: " + bytes_text(size));
    std::string text(static_cast<std::size_t>(size), '\0');
    for (std::size_t done = 0; done < text.size();) {
        const ssize_t count = uninterrupted(
            [&] { return calls.pread(file, text.data() + done, text.size() - done, static_cast<off_t>(done)); });
        if (count < 0) throw system_error(errno, std::string("read ") + list_path);
        if (count == 0) throw damaged("it became shorter");
        done += static_cast<std::size_t>(count);
    }
    return text;
}

/// Returns the rest of a stamp of version 1, which begins with the device number.
std::string without_device(std::string_view stamp) {
    const std::size_t space = stamp.find(' ');
    return std::string(space == stamp.npos ? stamp : stamp.substr(space + 1));
}

/// Parses the list; `file` is the open list, for its inode.
CommitList parse(std::string_view text, int file) {
    const auto next_line = [&] {
        const std::size_t end = text.find('\0');
        if (end == text.npos) throw damaged("it ends too early");
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(end + 1);
        return line;
    };
    const std::string_view version = next_line();
    if (version != first_line && version != first_line_3 && version != first_line_1)
        throw damaged("its version is unknown");
    const bool first_version = version == first_line_1;
    CommitList list;
    if (!first_version) list.inodes_last = inode_lasted(file, std::string(next_line()));
    for (std::string_view line = next_line(); line != last_line; line = next_line()) {
        const std::string_view name = line.empty() ? line : line.substr(1);
        if (name.empty() || !stays_below(name)) throw damaged("it has the invalid name " + safemap::quoted(name));
        if (line.front() != '+' && line.front() != '-') throw damaged("it has an invalid line");
        auto& entries = line.front() == '+' ? list.files : list.removed;
        const std::string_view before = next_line();
        entries.push_back(
            {.name = std::string(name), .before = first_version ? without_device(before) : std::string(before)});
    }
    if (!text.empty()) throw damaged("data follows its end");
    return list;
}

/// The folder that holds the file `path` of `folder`, and the file's name in it. The path may lead through folders, not
/// through symbolic links. `inner` is empty if the file is in `folder` itself; `number` is -1 if the folder does not
/// exist.
struct Home {
    Home(int folder, std::string_view path) : number(folder) {
        for (std::size_t slash = path.find('/'); slash != path.npos; slash = path.find('/')) {
            const std::string part(path.substr(0, slash));
            path.remove_prefix(slash + 1);
            if (part.empty() || part == ".") continue;
            Descriptor next = open_inner(number, part);
            if (!next && !means_absent(errno)) throw system_error(errno, "open " + safemap::quoted(part));
            inner = std::move(next);
            number = inner.number();
            if (number < 0) return;
        }
        name = path;
    }

    Descriptor inner;
    int number;
    std::string name;
};

void remove_below(int folder, std::string_view path) {
    const Home home(folder, path);
    if (home.number < 0) return;
    // EISDIR: a folder of that name is not a shard and stays.
    if (calls.unlinkat(home.number, home.name.c_str(), 0) != 0 && !means_absent(errno) && errno != EISDIR)
        throw system_error(errno, "remove " + safemap::quoted(path));
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
bool is_in_folder(const CommitList::Entry& entry) { return entry.name.find('/') != std::string::npos; }

/// Creates the folder for a file, with owner and permissions of the folder of that name in the content. A name has at
/// most one level of folders.
void make_folder(int content, int folder, const std::string& name) {
    struct stat wanted = {};
    if (calls.fstatat(content, name.c_str(), &wanted, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) return;  // all its files were moved before
        throw system_error(errno, "examine " + safemap::quoted(name));
    }
    if (calls.mkdirat(folder, name.c_str(), wanted.st_mode & 07777) != 0) {
        if (errno == EEXIST) return;
        throw system_error(errno, "create the folder " + safemap::quoted(name));
    }
    give_owner(folder, name.c_str(), wanted);
    if (calls.fchmodat(folder, name.c_str(), wanted.st_mode & 07777, 0) != 0)
        throw system_error(errno, "set the permissions of " + safemap::quoted(name));
}

/// Flushes `folder`, and the inner folders that files were moved into, to the disk.
void sync_folders(int folder, const CommitList& list) {
    std::set<std::string> folders;
    for (const CommitList::Entry& entry : list.files)
        if (is_in_folder(entry)) folders.insert(folder_of(entry.name));
    for (const std::string& name : folders) {
        const Descriptor inner = open_inner(folder, name);
        if (!inner) throw system_error(errno, "open " + safemap::quoted(name));
        sync_folder(inner.number());
    }
    sync_folder(folder);
}

/// Moves a file into place. Does not replace a file that another process has put there since the list was read, as far
/// as the file system supports that.
void move_file(int content, int folder, const CommitList& list, const CommitList::Entry& entry) {
    require_replaceable(folder, list, entry);
    if (is_in_folder(entry)) make_folder(content, folder, folder_of(entry.name));
    const Home from(content, entry.name);
    if (from.number < 0) return;
    const Home to(folder, entry.name);
    if (to.number < 0) throw system_error(ENOTDIR, "move " + safemap::quoted(entry.name) + " into place");
    const char* const name = to.name.c_str();
    const auto renamed = [&](unsigned flags) {
        return calls.renameat2(from.number, name, to.number, name, flags) == 0 || errno == ENOENT;
    };
    bool done = renamed(entry.before.empty() ? RENAME_NOREPLACE : 0);
    if (!done && errno == EEXIST) throw written_to(entry.name);
    // This file system does not support flags of rename.
    if (!done && flags_unsupported(errno)) done = renamed(0);
    if (!done) throw system_error(errno, "move " + safemap::quoted(entry.name) + " into place");
}

/// Moves the files. A file that is missing from the content was moved before.
void move_files(int folder, const CommitList& list, bool durable) {
    const Descriptor content = open_at(folder, staged_content, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!content) {
        if (errno == ENOENT) return;
        throw system_error(errno, std::string("open ") + staged_content);
    }
    for (const CommitList::Entry& entry : list.files) {
        // A reader of the file that names the others must find the others on the disk.
        if (durable && &entry == &list.files.back()) sync_folders(folder, list);
        move_file(content.number(), folder, list, entry);
    }
}

}  // namespace

void write_commit_list(int sibling, int folder, std::span<const std::string> files,
                       std::span<const std::string> removed, bool durable) {
    const struct stat status = examine(folder);
    const mode_t mode = (status.st_mode & (S_IRUSR | S_IRGRP | S_IROTH)) | S_IRUSR | S_IWUSR;
    put_note(sibling, commit_list_name, new_list_name, mode, list_path, durable, [&](int note) {
        const bool has_folders = std::any_of(
            files.begin(), files.end(), [](const std::string& name) { return name.find('/') != std::string::npos; });
        std::string text(has_folders ? first_line_3 : first_line);
        text += '\0';
        text.append(inode_text(note)) += '\0';
        const auto add = [&](char sign, const std::string& name) {
            (text += sign).append(name) += '\0';
            text.append(stamp_in(folder, name)) += '\0';
        };
        for (const std::string& name : files) add('+', name);
        for (const std::string& name : removed) add('-', name);
        (text += last_line) += '\0';
        return text;
    });
}

std::optional<CommitList> read_commit_list(int folder) {
    for (;;) {
        const Descriptor file = open_at(folder, list_path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        if (!file) {
            require_none(folder, errno);
            return std::nullopt;
        }
        try {
            CommitList list = parse(read_all(file.number()), file.number());
            require_current(folder, list);
            return list;
        } catch (const Error&) {
            if (!is_done(file.number())) throw;
        }
    }
}

void finish_commit(int folder, bool durable) {
    const auto list = read_commit_list(folder);
    if (!list) return;
    move_files(folder, *list, durable);
    for (const CommitList::Entry& entry : list->removed) {
        require_removable(folder, *list, entry);
        remove_below(folder, entry.name);
    }
    if (durable) sync_folder(folder);
    if (calls.unlinkat(folder, list_path, 0) != 0) throw system_error(errno, std::string("remove ") + list_path);
}

void commit_in_place(PendingSave& save) {
    save.sync_content();
    const int target = save.old.number();
    if (!save.inside) {
        // The content was to be exchanged with the folder, so it is on the same file system.
        if (const int number = save.sibling.move(target, HiddenSibling::suffix))
            throw system_error(number, "move the new files into it");
        save.inside = true;
    }
    const std::vector<std::string>& files = save.ours.files;
    std::vector<std::string> removed;
    for (const std::string& name : save.ours.old)
        if (std::find(files.begin(), files.end(), name) == files.end()) removed.push_back(name);
    open_to_readers(save);
    write_commit_list(save.sibling.folder(), target, files, removed, save.durable);
    save.state = PendingSave::State::committed;
    try {
        save.sync(target);  // the entry of the sibling
        finish_commit(target, save.durable);
        save.clear_sibling();
    } catch (Error& error) {
        save.sibling.abandon();
        throw error.with_hint(
            "the new checkpoint is committed: safemap reads it, and the next save into this folder finishes the "
            "move; other programs may see a mix of old and new files");
    }
}

}  // namespace safemap::SAFEMAP_ABI::io
