// Walks the folders twice: is_possible() checks that they can be rebuilt, run() rebuilds them.
#include "io/inner_folders.hpp"

#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/hidden_sibling.hpp"
#include "io/listing.hpp"
#include "io/note.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::size_t most_entries = 10'000;  // in inner folders; 10,000 links take a fifth of a second
constexpr std::size_t deepest = 32;           // levels; each holds two descriptors open

constexpr std::size_t longest_path = 4000;  // bytes, below PATH_MAX: paths are relative to the new folder

/// Returns true if the name may be the sibling of another save. A copy of a sibling would be wrong: its notes describe
/// the original files.
bool is_of_a_save(const std::string& name, std::size_t depth) {
    return (depth == 0 && name == HiddenSibling::suffix) ||
           (name.starts_with('.') && name.ends_with(HiddenSibling::suffix));
}

/// Returns true if the folder has an access control list. A new folder would lack that list, or would inherit another
/// one from its parent.
bool has_access_list(int folder) {
    return ::fgetxattr(folder, "system.posix_acl_access", nullptr, 0) > 0 ||
           ::fgetxattr(folder, "system.posix_acl_default", nullptr, 0) > 0;
}

/// Returns true if attributes of the file system (append-only, immutable) forbid removing names from the folder.
bool is_pinned(int folder) {
    struct statx status = {};
    return ::statx(folder, "", AT_EMPTY_PATH, 0, &status) == 0 &&
           (status.stx_attributes & (STATX_ATTR_APPEND | STATX_ATTR_IMMUTABLE)) != 0;
}

bool out_of_descriptors(const Error& error) { return error.code() == Errc::too_many_open_files; }

/// Gives the new folder the owner, permissions and times of the old one. Returns false if that is not permitted.
bool dress(int folder, const struct stat& old) {
    if (calls.fchownat(folder, "", old.st_uid, old.st_gid, AT_EMPTY_PATH) != 0) {
        if (never_possible(errno)) return false;
        throw system_error(errno, "set the owner of a folder in the new folder");
    }
    // After the owner: a change of the owner clears permission bits.
    if (calls.fchmod(folder, old.st_mode & 07777) != 0)
        throw system_error(errno, "set the permissions of a folder in the new folder");
    const timespec times[] = {old.st_atim, old.st_mtim};
    if (calls.futimens(folder, times) != 0) throw system_error(errno, "set the times of a folder in the new folder");
    const struct stat now = examine(folder, "a folder in the new folder");
    return now.st_uid == old.st_uid && now.st_gid == old.st_gid && now.st_mode == old.st_mode &&
           !has_access_list(folder);
}

}  // namespace

struct Linking::Run {
    const std::set<std::string_view>& goes;
    Linked& made;
    std::size_t entries = 0;
};

Linking::Linking(int folder, std::string path) : folder_(folder), path_(std::move(path)), status_(examine(folder)) {
    if (calls.fstatat(AT_FDCWD, ".", &working_, 0) != 0) working_ = {};
}

bool Linking::is_possible() const {
    std::size_t entries = 0;
    try {
        return survey(folder_, 0, 0, entries);
    } catch (const Error& error) {
        if (out_of_descriptors(error)) return false;
        throw;
    }
}

bool Linking::run(int to, const std::set<std::string_view>& goes, Linked& made) const {
    Run run = {.goes = goes, .made = made};
    try {
        return fill(folder_, to, {}, 0, run);
    } catch (const Error& error) {
        if (out_of_descriptors(error)) return false;
        throw;
    }
}

/// Returns true if this folder can be rebuilt, and the old one can be emptied and removed.
bool Linking::suits(int folder, std::size_t depth) const {
    struct stat status = {};
    if (depth > deepest || calls.fstat(folder, &status) != 0) return false;
    if (status.st_dev != status_.st_dev || same_inode(status, working_) || calls.is_mount_root(folder)) return false;
    if (has_access_list(folder) || is_pinned(folder)) return false;
    const uid_t user = ::geteuid();
    if (user != 0 && status.st_uid != user) return false;
    return calls.faccessat(folder, ".", R_OK | W_OK | X_OK, AT_EACCESS) == 0;
}

bool Linking::survey(int folder, std::size_t depth, std::size_t path, std::size_t& entries) const {
    if (path > longest_path || (depth > 0 && (entries += list_all(folder, path_).size()) > most_entries)) return false;
    for (const std::string& name : list_inner_folders(folder, path_)) {
        if (is_of_a_save(name, depth)) return false;
        const Descriptor inner = open_inner(folder, name);
        if (!inner && means_absent(errno)) continue;
        if (!inner || !suits(inner.number(), depth + 1) ||
            !survey(inner.number(), depth + 1, path + name.size() + 1, entries))
            return false;
    }
    return true;
}

bool Linking::fill(int from, int to, const std::string& prefix, std::size_t depth, Run& run) const {
    const auto folders = list_inner_folders(from, path_);
    const auto names = list_all(from, path_);
    if (depth > 0 && (run.entries += names.size()) > most_entries) return false;
    for (const std::string& name : names) {
        const std::string path = prefix + name;
        if (run.goes.count(path) != 0) continue;
        if (std::binary_search(folders.begin(), folders.end(), name)) {
            if (!link_folder(from, to, name, path, depth, run)) return false;
            continue;
        }
        if (calls.linkat(from, name.c_str(), to, name.c_str(), 0) == 0) {
            run.made.files.push_back(path);
            continue;
        }
        if (errno == ENOENT) continue;  // removed meanwhile
        if (never_possible(errno)) return false;
        throw system_error(errno, "link " + safemap::quoted(path) + " into the new folder");
    }
    return true;
}

bool Linking::link_folder(int from_home, int to_home, const std::string& name, const std::string& path,
                          std::size_t depth, Run& run) const {
    if (is_of_a_save(name, depth) || path.size() > longest_path) return false;
    const Descriptor from = open_inner(from_home, name);
    if (!from && means_absent(errno)) return true;  // removed meanwhile
    if (!from || !suits(from.number(), depth + 1)) return false;
    const struct stat old = examine(from.number(), safemap::quoted(path));
    const bool is_new = calls.mkdirat(to_home, name.c_str(), S_IRWXU) == 0;
    if (!is_new && errno != EEXIST) {
        if (never_possible(errno) || errno == ENOSPC || errno == EDQUOT) return false;  // in place needs no space
        throw system_error(errno, "create " + safemap::quoted(path) + " in the new folder");
    }
    run.made.folders.push_back({.path = path, .before = stamp_of(old)});
    // The umask may have denied the owner permissions that are needed here.
    if (is_new && calls.fchmodat(to_home, name.c_str(), S_IRWXU, 0) != 0)
        throw system_error(errno, "set the permissions of " + safemap::quoted(path) + " in the new folder");
    const Descriptor to = open_inner(to_home, name);
    if (!to && (errno == EMFILE || errno == ENFILE)) return false;
    if (!to) throw system_error(errno, "open " + safemap::quoted(path) + " in the new folder");
    if (!fill(from.number(), to.number(), path + '/', depth + 1, run)) return false;
    return !is_new || dress(to.number(), old);
}

}  // namespace safemap::SAFEMAP_ABI::io
