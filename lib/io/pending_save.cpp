// Parts of a save that is being prepared. From top to bottom:
//   Place                    where the target is
//   SiblingFiles, Ours       files of the save
//   set_permissions()        owners and permissions of files, inner folders and the folder itself
//   JoinedSibling            finds a sibling by its token (tests/io/joined_sibling_test.cpp)
#include "io/pending_save.hpp"

#include "base/faults.hpp"
#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/file.hpp"
#include "io/listing.hpp"
#include "io/note.hpp"

#include <safemap/advanced/text.hpp>

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <random>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::io {

namespace {

constexpr std::size_t longest_name = 255;  // bytes; NAME_MAX of all common file systems

/// Removes trailing slashes: "out//" becomes "out".
std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

}  // namespace

Place::Place(const std::filesystem::path& path, bool follow) : target(without_slashes(without_nul(path.native()))) {
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
    if (parent) return;
    const int number = errno;
    Error error = system_error(number, "open the folder to save in");
    error.with_path(without_slashes(folder));
    if (target.find("://") != std::string::npos) error.with_hint("safemap writes to folders of this machine");
    if (number == ENOENT) error.with_hint("mkdir -p " + shell_word(without_slashes(folder)));
    if (number == ENOTDIR) error.with_hint("it is a file, or below one: save to another folder");
    throw error;
}

bool Place::status(struct stat& found) const {
    if (calls.fstatat(parent.number(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) return true;
    if (errno != ENOENT) throw system_error(errno, "examine it").with_path(target);
    return false;
}

void Place::require_absent() const {
    struct stat found = {};
    if (!status(found)) return;
    if (!S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode) && !S_ISLNK(found.st_mode))
        throw Error(Errc::already_exists, "it is neither a file nor a folder, and is not replaced").with_path(target);
    throw Error(Errc::already_exists, "already exists and is not overwritten")
        .with_path(target)
        .with_hint("--force (SaveOptions::overwrite) replaces it");
}

std::string text_of_whole(const struct stat& status) {
    Identity identity = identity_of(status);
    if (S_ISDIR(status.st_mode)) identity.size = identity.modified_ns = 0;
    return text_of(identity);
}

std::string identity_at(int folder, const char* name) {
    struct stat found = {};
    if (calls.fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0) return {};
    return text_of_whole(found);
}

// ---- files

const char* SiblingFiles::name_in_folder(const std::string& name) const noexcept {
    return is_folder() ? name.c_str() : HiddenSibling::content;
}

std::string SiblingFiles::path_of(const std::string& name) const { return is_folder() ? target + "/" + name : target; }

OutputFile SiblingFiles::reopen(const std::string& name) const {
    Descriptor descriptor = open_at(home, name_in_folder(name), O_WRONLY | O_NOFOLLOW);
    if (!descriptor) throw system_error(errno, "open it again");
    return OutputFile(std::move(descriptor), durable);
}

std::set<std::string_view> Ours::replaced() const {
    std::set<std::string_view> all(files.begin(), files.end());
    all.insert(old.begin(), old.end());
    return all;
}

bool Ours::is_all_of(int content, const std::string& path) const {
    std::set<std::string_view> ours(files.begin(), files.end());
    ours.insert(folders.begin(), folders.end());
    const auto has_only_ours = [&](int folder, const std::string& prefix) {
        const auto names = list_all(folder, path);
        return std::all_of(names.begin(), names.end(),
                           [&](const std::string& name) { return ours.count(prefix + name) != 0; });
    };
    try {
        return has_only_ours(content, {}) && std::all_of(folders.begin(), folders.end(), [&](const std::string& name) {
                   const Descriptor folder = open_inner(content, name);
                   return folder && has_only_ours(folder.number(), name + '/');
               });
    } catch (const std::exception&) {
        return false;
    }
}

void PendingSave::sync_content() const {
    sync(content.number());
    const auto sync_inner = [this](const std::string& path) {
        const Descriptor open = open_inner(content.number(), path);
        if (!open) throw system_error(errno, "open " + safemap::quoted(path) + " in the new folder");
        sync(open.number());
    };
    for (const std::string& inner : ours.folders) sync_inner(inner);
    for (const Linked::Folder& inner : ours.linked.folders) sync_inner(inner.path);
}

void PendingSave::clear_sibling() {
    if (!sibling) return;
    try {
        sibling.remove_content(notes);
        sibling.remove_notes();
        sibling.remove();
    } catch (const std::exception& error) {
        sibling.abandon();
        notes.push_back("the replaced files could not be removed, and take space until the next save here: " +
                        std::string(error.what()));
    }
}

// ---- owners and permissions

namespace {

void set_file_permissions(const PendingSave& save, const std::string& file, const struct stat& old, bool there) {
    if (!there && save.sibling.denied() == 0) return;
    const char* name = save.name_in_folder(file);
    struct stat now = {};
    if (calls.fstatat(save.home, name, &now, AT_SYMLINK_NOFOLLOW) != 0) throw system_error(errno, "examine it");
    if (there && (old.st_uid != now.st_uid || old.st_gid != now.st_gid)) give_owner(save.home, name, old);
    const mode_t wanted = there ? old.st_mode & 07777 : now.st_mode & 07777 & ~save.sibling.denied();
    if (wanted != (now.st_mode & 07777) && calls.fchmodat(save.home, name, wanted, 0) != 0)
        throw system_error(errno, "set the permissions of " + safemap::quoted(file));
}

void set_folder_permissions(const PendingSave& save, const std::string& name) {
    struct stat old = {};
    if (calls.fstatat(save.old.number(), name.c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0 &&
        calls.fstat(save.old.number(), &old) != 0)
        throw system_error(errno, "examine it");
    give_owner(save.content.number(), name.c_str(), old);
    if (calls.fchmodat(save.content.number(), name.c_str(), (old.st_mode & 07777) | S_IRWXU, 0) != 0)
        throw system_error(errno, "set the permissions of " + safemap::quoted(name));
}

}  // namespace

void set_permissions(const PendingSave& save) {
    struct stat model = {};
    bool has_model = false;
    const int target = save.old.number();
    for (const std::string& file : save.ours.old)
        has_model = has_model || (calls.fstatat(target, file.c_str(), &model, 0) == 0 && S_ISREG(model.st_mode));
    for (const std::string& file : save.ours.files) {
        struct stat old = model;
        bool there = has_model;
        if (!save.is_folder()) {
            there = save.replaces && calls.fstatat(save.place.parent.number(), save.place.name.c_str(), &old, 0) == 0 &&
                    S_ISREG(old.st_mode);
        } else if (save.old && calls.fstatat(target, file.c_str(), &old, 0) == 0) {
            if (S_ISDIR(old.st_mode))
                throw Error(Errc::already_exists,
                            safemap::quoted(file) + " in it is a folder, but a file would be written");
            there = S_ISREG(old.st_mode);
        } else {
            old = model;
        }
        set_file_permissions(save, file, old, there);
    }
    if (!save.old) return;
    for (const std::string& name : save.ours.folders) set_folder_permissions(save, name);
}

void open_to_readers(const PendingSave& save) {
    const struct stat old = examine(save.old.number());
    const auto give = [&](int home, const char* name, int descriptor) {
        give_owner(home, name, old);
        if (calls.fchmod(descriptor, (old.st_mode & 07777) | S_IRWXU) != 0)
            throw system_error(errno, "set the permissions of the new folder");
    };
    give(save.sibling.folder(), HiddenSibling::content, save.content.number());
    if (save.inside) give(save.old.number(), HiddenSibling::suffix, save.sibling.folder());
}

void set_final_mode(const PendingSave& save) {
    if (!save.is_folder()) return;
    const int content = save.content.number();
    struct stat now = {};
    if (!save.old) {
        for (const std::string& folder : save.ours.folders)
            if (calls.fstatat(content, folder.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0 ||
                calls.fchmodat(content, folder.c_str(), now.st_mode & 07777 & ~save.sibling.denied(), 0) != 0)
                throw system_error(errno, "set the permissions of " + safemap::quoted(folder));
    }
    if (calls.fstat(content, &now) != 0) throw system_error(errno, "examine it");
    const mode_t wanted = save.old_mode.value_or(now.st_mode & 07777 & ~save.sibling.denied());
    if (wanted != (now.st_mode & 07777) && calls.fchmod(content, wanted) != 0)
        throw system_error(errno, "set its permissions");
}

// ---- the files of another process

namespace {

// A client of NFS may keep for three seconds that a name does not exist.
constexpr std::chrono::milliseconds between{50};
constexpr int most_waits = 60;

// As every note begins, so that a sibling that has lost its lock file is known by it.
constexpr std::string_view first_words = "safemap token ";

Descriptor open_sibling(int parent, const std::string& target, bool inside) {
    if (!inside) return open_inner(parent, '.' + target + HiddenSibling::suffix);
    const Descriptor folder = open_inner(parent, target);
    return folder ? open_inner(folder.number(), HiddenSibling::suffix) : Descriptor();
}

/// Returns the token of a sibling; an empty text if it has none.
std::string token_in(int sibling) {
    const Descriptor file = open_at(sibling, token_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!file) return {};
    const std::string text = read_note(file.number(), "the token");
    return text.starts_with(first_words) ? text.substr(first_words.size()) : std::string();
}

}  // namespace

std::string new_token() {
    std::random_device random;
    std::string token;
    for (int i = 0; i < 4; ++i) token += std::to_string(random()) + (i < 3 ? "-" : "");
    return token;
}

void put_token(int sibling, const std::string& token, bool durable) {
    put_note(sibling, token_name, new_token_name, std::nullopt, "the token", durable,
             [&](int) { return std::string(first_words) + token; });
}

JoinedSibling::JoinedSibling(const std::filesystem::path& path, Kind kind_of_target, Existing existing,
                             const std::string& key, bool is_durable)
    : SiblingFiles{.kind = kind_of_target, .durable = is_durable} {
    const Place place(path, existing != Existing::refuse && is_folder());
    target = place.target;
    const std::string_view where = std::string_view(key).substr(0, key.find(' '));
    const std::string_view token = std::string_view(key).substr(where.size() + 1);
    about_file(target, [&] {
        for (int attempt = 0; attempt < most_waits; ++attempt) {
            if (attempt > 0) calls.sleep(between);
            const Descriptor sibling = open_sibling(place.parent.number(), place.name, where == "inside");
            if (!sibling || token_in(sibling.number()) != token) continue;
            if (where == "published") return;  // every file is finished
            files = open_inner(sibling.number(), is_folder() ? HiddenSibling::content : ".");
            if (!files) throw system_error(errno, "open the new folder");
            home = files.number();
            return;
        }
        throw Error(Errc::invalid_argument, "this process does not see what the first process has created there")
            .with_hint("save to a file system that all processes share, under the same path");
    });
}

}  // namespace safemap::SAFEMAP_ABI::io
