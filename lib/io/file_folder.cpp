// A directory as a Folder. The directory stays open, so neither chdir nor a rename of the directory changes which files
// the Folder reads. Globs are expanded by glob(3).
#include "io/file_folder.hpp"

#include "base/folder.hpp"
#include "base/text.hpp"
#include "io/calls.hpp"
#include "io/file.hpp"
#include "io/in_place.hpp"
#include "io/listing.hpp"
#include "io/mapping.hpp"

#include <safemap/advanced/file.hpp>
#include <safemap/error.hpp>

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI {

namespace io {

namespace {

bool lists(const std::vector<CommitList::Entry>& entries, std::string_view name) {
    return std::any_of(entries.begin(), entries.end(), [name](const auto& entry) { return entry.name == name; });
}

/// Returns the names that the folder has once its unfinished commit is carried out.
std::vector<std::string> with_commit(std::vector<std::string> names, const CommitList& list) {
    for (const auto& entry : list.files)
        if (entry.name.find('/') == std::string::npos) names.push_back(entry.name);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::erase_if(names,
                  [&](const std::string& name) { return lists(list.removed, name) && !lists(list.files, name); });
    return names;
}

/// Throws if `name`, which a checkpoint gave, leads out of the folder. Symbolic links may lead out: the caches of model
/// hubs consist of them.
void require_below(std::string_view name, const std::string& folder) {
    if (!stays_below(name))
        throw Error(Errc::shard_outside_folder, safemap::quoted(name) + " is not a relative path without '..'")
            .with_path(folder);
}

bool is_below(std::string_view path, std::string_view folder) {
    return !folder.empty() && path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

/// Returns `REPO/blobs` for a folder `REPO/snapshots/REVISION` or one in it: the layout of huggingface_hub's cache.
/// Returns an empty text for any other folder.
std::string blobs_of(const std::string& folder) {
    constexpr std::string_view snapshots = "/snapshots/";
    const std::size_t found = folder.rfind(snapshots);
    return found == folder.npos ? std::string() : folder.substr(0, found) + "/blobs";
}

class FileFolder final : public Folder {
public:
    FileFolder(Descriptor descriptor, std::filesystem::path path, Mapping mapping)
        : descriptor_(std::make_shared<const Descriptor>(std::move(descriptor))),
          path_(std::move(path)),
          mapping_(mapping),
          commit_(read_commit_list(descriptor_->number())) {}

    const std::string& name() const noexcept override { return path_.native(); }

    std::vector<std::string> list() const override {
        auto names = list_files(descriptor_->number(), path_.native());
        return commit_ ? with_commit(std::move(names), *commit_) : names;
    }

    std::vector<std::string> folders() const override { return list_folders(descriptor_->number(), path_.native()); }

    std::vector<std::string> others() const override { return list_others(descriptor_->number(), path_.native()); }

    std::shared_ptr<const Folder> folder(std::string_view name) const override {
        require_below(name, this->name());
        const std::string below(name);
        if (below.empty() || below.find('\0') != std::string::npos) return nullptr;
        if (below == "." || below.find('/') != std::string::npos)
            throw Error(Errc::shard_outside_folder, safemap::quoted(below) + " is not the name of a folder in it")
                .with_path(path_.native());
        Descriptor descriptor = open_at(descriptor_->number(), below.c_str(), O_RDONLY | O_DIRECTORY);
        if (descriptor) return std::make_shared<FileFolder>(std::move(descriptor), path_ / below, mapping_);
        if (errno == ENOENT || errno == ENOTDIR) return nullptr;
        throw system_error(errno, "open it as a folder").with_path((path_ / below).native());
    }

    std::shared_ptr<const Source> open(std::string_view file) const override {
        require_below(file, name());
        if (file.empty() || file.find('\0') != std::string_view::npos) return nullptr;
        std::shared_ptr<const Source> source;
        if (commit_ && lists(commit_->files, file))
            source = open_below(std::string(staged_content) + '/' + std::string(file));
        if (!source) source = open_below(std::string(file));
        const std::lock_guard lock(opening_);
        if (source) opened_.emplace_back(file, source->identity());
        return source;
    }

    std::string link_to_folder(const std::string& name) const override {
        std::string path(4096, '\0');
        const ssize_t size = ::readlinkat(descriptor_->number(), name.c_str(), path.data(), path.size());
        if (size <= 0) return {};
        path.resize(static_cast<std::size_t>(size));
        while (path.size() > 1 && path.back() == '/') path.pop_back();
        const std::string last = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
        struct stat linked = {};
        struct stat beside = {};
        const bool is_same = calls.fstatat(descriptor_->number(), name.c_str(), &linked, 0) == 0 &&
                             calls.fstatat(descriptor_->number(), last.c_str(), &beside, AT_SYMLINK_NOFOLLOW) == 0 &&
                             S_ISDIR(beside.st_mode) && same_inode(linked, beside);
        return is_same && last != "." && last != ".." ? last : std::string();
    }

    std::string link_out(const std::string& name) const override {
        std::error_code failed;
        const std::filesystem::path link = path_ / name;
        if (std::filesystem::symlink_status(link, failed).type() != std::filesystem::file_type::symlink) return {};
        const std::string folder = std::filesystem::canonical(path_, failed).native();
        std::string target = std::filesystem::canonical(link, failed).native();
        if (folder.empty() || target.empty()) return {};  // list() lacks broken links
        return is_below(target, folder) || is_below(target, blobs_of(folder)) ? std::string() : target;
    }

    std::string other_kind(const std::string& name) const override {
        struct stat status = {};
        if (calls.fstatat(descriptor_->number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return {};
        if (calls.fstatat(descriptor_->number(), name.c_str(), &status, 0) != 0)
            return errno == ELOOP ? "a link that leads back to itself" : "a broken link";
        if (S_ISREG(status.st_mode)) return {};
        return S_ISDIR(status.st_mode)    ? "a folder"
               : S_ISFIFO(status.st_mode) ? "a pipe"
               : S_ISSOCK(status.st_mode) ? "a socket"
                                          : "a device";
    }

    bool changed() const override {
        struct stat here = {};
        struct stat there = {};
        if (calls.fstat(descriptor_->number(), &here) != 0 || calls.fstatat(AT_FDCWD, path_.c_str(), &there, 0) != 0 ||
            !same_inode(here, there))
            return true;
        try {
            if (read_commit_list(descriptor_->number()) != commit_) return true;
        } catch (const Error&) {
            return true;
        }
        const std::lock_guard lock(opening_);
        return std::any_of(opened_.begin(), opened_.end(),
                           [this](const auto& opened) { return identity_of(opened.first) != opened.second; });
    }

private:
    std::shared_ptr<const Source> open_below(std::string file) const {
        const std::string path = (path_ / file).native();
        try {
            return file_source(descriptor_, std::move(file), path, mapping_);
        } catch (const Error& error) {
            if (error.code() == Errc::path_not_found) return nullptr;
            if (error.code() != Errc::invalid_argument) throw;
            // open_file() treats a non-file as a wrong call. Here the checkpoint gave the name, so the checkpoint is at
            // fault.
            throw Error(Errc::shard_missing, error.message()).with_path(error.path());
        }
    }

    /// Returns the identity of the file that open() would open now.
    std::string identity_of(const std::string& file) const {
        struct stat status = {};
        const std::string staged = std::string(staged_content) + '/' + file;
        const bool found = (commit_ && lists(commit_->files, file) &&
                            calls.fstatat(descriptor_->number(), staged.c_str(), &status, 0) == 0) ||
                           calls.fstatat(descriptor_->number(), file.c_str(), &status, 0) == 0;
        return found ? lasting_text_of(io::identity_of(status)) : std::string();
    }

    Handle descriptor_;  // shared with its files, which may be opened again
    std::filesystem::path path_;
    Mapping mapping_;
    std::optional<CommitList> commit_;  ///< the unfinished commit of the last save
    mutable std::mutex opening_;
    mutable std::vector<std::pair<std::string, std::string>> opened_;  ///< names of opened files, with their identities
};

}  // namespace

}  // namespace io

std::shared_ptr<const Folder> open_folder(const std::filesystem::path& path, Mapping mapping) {
    const std::string& name = io::without_nul(path.native());
    io::Descriptor descriptor = io::open_at(AT_FDCWD, name.c_str(), O_RDONLY | O_DIRECTORY);
    if (!descriptor) throw io::system_error(errno, "open it as a folder").with_path(name);
    return std::make_shared<io::FileFolder>(std::move(descriptor), path, mapping);
}

bool is_glob(const std::filesystem::path& path) {
    if (path.native().find_first_of("*?[") == std::string::npos) return false;
    std::error_code ignored;
    return !std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

std::vector<std::filesystem::path> paths_matching(const std::filesystem::path& glob) {
    glob_t found = {};
    const std::unique_ptr<glob_t, decltype(&::globfree)> freed(&found, &::globfree);
    // GLOB_NOSORT: the order of ::glob() depends on the locale.
    const int status = ::glob(glob.c_str(), GLOB_NOSORT, nullptr, &found);
    if (status == GLOB_NOSPACE) throw Error(Errc::out_of_memory, "not enough memory for the matches of a glob");
    std::vector<std::filesystem::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    const auto is_dots = [](const std::filesystem::path& path) {
        return path.filename() == "." || path.filename() == "..";
    };
    if (!is_dots(glob)) std::erase_if(paths, is_dots);  // `.*` means hidden files
    std::sort(paths.begin(), paths.end());
    return paths;
}

}  // namespace safemap::SAFEMAP_ABI
