// Lists directories with readdir.
#include "io/listing.hpp"

#include "io/calls.hpp"
#include "io/system.hpp"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

namespace {

struct CloseDirectory {
    void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

/// Returns true if the entry, or the target of a link, has `type`: DT_REG or DT_DIR.
bool is_of(unsigned char type, int folder, const dirent& entry) {
    if (entry.d_type == type) return true;
    if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return false;
    struct stat status = {};
    return calls.fstatat(folder, entry.d_name, &status, 0) == 0 && IFTODT(status.st_mode) == type;
}

template <class Wanted> std::vector<std::string> list(int folder, const std::string& path, Wanted&& wanted) {
    // Opened again: a descriptor has one read position in the directory, and several threads may list it.
    Descriptor own = open_at(folder, ".", O_RDONLY | O_DIRECTORY);
    if (!own) throw system_error(errno, "list it").with_path(path);
    const std::unique_ptr<DIR, CloseDirectory> directory(::fdopendir(own.number()));
    if (!directory) throw system_error(errno, "list it").with_path(path);
    own.release();

    std::vector<std::string> names;
    for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(directory.get());
        if (entry == nullptr) break;
        const std::string_view name = entry->d_name;
        if (name != "." && name != ".." && wanted(*entry)) names.emplace_back(name);
    }
    if (errno != 0) throw system_error(errno, "list it").with_path(path);
    return names;
}

std::vector<std::string> sorted(std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace

std::vector<std::string> list_files(int folder, const std::string& path) {
    return sorted(list(folder, path, [folder](const dirent& entry) { return is_of(DT_REG, folder, entry); }));
}

std::vector<std::string> list_folders(int folder, const std::string& path) {
    return sorted(list(folder, path, [folder](const dirent& entry) { return is_of(DT_DIR, folder, entry); }));
}

std::vector<std::string> list_inner_folders(int folder, const std::string& path) {
    return sorted(list(folder, path, [folder](const dirent& entry) {
        struct stat status = {};
        if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
        return calls.fstatat(folder, entry.d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode);
    }));
}

std::vector<std::string> list_others(int folder, const std::string& path) {
    return sorted(list(folder, path, [folder](const dirent& entry) {
        return !is_of(DT_REG, folder, entry) && !is_of(DT_DIR, folder, entry);
    }));
}

std::vector<std::string> list_all(int folder, const std::string& path) {
    return list(folder, path, [](const dirent&) { return true; });
}

}  // namespace safemap::SAFEMAP_ABI::io
