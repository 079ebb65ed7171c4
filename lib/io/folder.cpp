// A directory as a Folder. It stays open, so neither chdir nor a rename of the directory changes what it means.
#include "base/text.hpp"
#include "io/listing.hpp"
#include "io/mapping.hpp"

#include <safemap/file.hpp>

#include <fcntl.h>

#include <filesystem>

namespace safemap {

namespace io {

namespace {

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
          mapping_(mapping) {}

    const std::string& name() const noexcept override { return path_.native(); }

    std::vector<std::string> list() const override { return list_files(descriptor_->number(), path_.native()); }

    std::shared_ptr<const Source> open(std::string_view file) const override {
        require_below(file, name());
        if (file.empty() || file.find('\0') != std::string_view::npos) return nullptr;
        try {
            return file_source(descriptor_, std::string(file), (path_ / file).native(), mapping_);
        } catch (const Error& error) {
            if (error.code() == Errc::path_not_found) return nullptr;
            if (error.code() != Errc::invalid_argument) throw;
            // Of the checkpoint, what is no file is a fault; to the caller who gave a path, it is a wrong call.
            throw Error(Errc::shard_missing, error.message()).with_path(error.path());
        }
    }

private:
    Handle descriptor_;  // shared with its files, which may have to be opened again
    std::filesystem::path path_;
    Mapping mapping_;
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
