// A directory as a Folder. It stays open, so neither chdir nor a rename of the directory changes what it means.
#include "base/text.hpp"
#include "io/commit_list.hpp"
#include "io/listing.hpp"
#include "io/mapping.hpp"

#include <safemap/file.hpp>

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace safemap {

namespace io {

namespace {

/// What the folder holds, as somebody who knows of a commit that is not finished sees it.
std::vector<std::string> with_commit(std::vector<std::string> names, const CommitList& list) {
    names.insert(names.end(), list.files.begin(), list.files.end());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    std::erase_if(names, [&](const std::string& name) {
        const auto in = [&](const auto& some) { return std::find(some.begin(), some.end(), name) != some.end(); };
        return in(list.removed) && !in(list.files);
    });
    return names;
}

/// A name out of a checkpoint must not lead outside its folder. Symbolic links may: hub caches consist of them.
void require_below(std::string_view name, const std::string& folder) {
    if (!stays_below(name))
        throw Error(Errc::shard_outside_folder, quoted(name) + ", wanted a relative path without '..'")
            .with_path(folder);
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

    std::shared_ptr<const Source> open(std::string_view file) const override {
        require_below(file, name());
        if (file.empty() || file.find('\0') != std::string_view::npos) return nullptr;
        if (commit_ && std::find(commit_->files.begin(), commit_->files.end(), file) != commit_->files.end())
            if (auto source = open_below(std::string(staged_content) + '/' + std::string(file))) return source;
        return open_below(std::string(file));
    }

private:
    std::shared_ptr<const Source> open_below(std::string file) const {
        const std::string path = (path_ / file).native();
        try {
            return file_source(descriptor_, std::move(file), path, mapping_);
        } catch (const Error& error) {
            if (error.code() == Errc::path_not_found) return nullptr;
            if (error.code() != Errc::invalid_argument) throw;
            // Of the checkpoint, what is no file is a fault; to the caller who gave a path, it is a wrong call.
            throw Error(Errc::shard_missing, error.message()).with_path(error.path());
        }
    }

    Handle descriptor_;  // shared with its files, which may have to be opened again
    std::filesystem::path path_;
    Mapping mapping_;
    std::optional<CommitList> commit_;  ///< what the last save has begun to do here
};

}  // namespace

}  // namespace io

std::shared_ptr<const Folder> open_folder(const std::filesystem::path& path, Mapping mapping) {
    const std::string& name = io::without_nul(path.native());
    io::Descriptor descriptor = io::open_at(AT_FDCWD, name.c_str(), O_RDONLY | O_DIRECTORY);
    if (!descriptor) throw io::system_error(errno, "open it as a folder").with_path(name);
    return std::make_shared<io::FileFolder>(std::move(descriptor), path, mapping);
}

}  // namespace safemap
