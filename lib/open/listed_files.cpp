// Implements Folder over a map from the names of files to their paths.
#include "open/listed_files.hpp"

#include "base/text.hpp"
#include "io/file_folder.hpp"

#include <safemap/error.hpp>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::open {

namespace {

class ListedFiles final : public Folder {
public:
    using Paths = std::map<std::string, std::filesystem::path, std::less<>>;

    ListedFiles(std::string name, Paths paths, Mapping mapping)
        : name_(std::move(name)), paths_(std::move(paths)), mapping_(mapping) {}

    const std::string& name() const noexcept override { return name_; }
    std::vector<std::string> list() const override {
        std::vector<std::string> names;
        for (const auto& file : paths_) names.push_back(file.first);
        return names;
    }
    std::shared_ptr<const Source> open(std::string_view file) const override {
        const auto found = paths_.find(file);
        if (found != paths_.end()) return open_file(found->second, mapping_);
        return open_folder(name_, mapping_)->open(file);
    }

private:
    std::string name_;
    Paths paths_;
    Mapping mapping_;
};

}  // namespace

std::shared_ptr<const Folder> listed_files(std::span<const std::filesystem::path> files, Mapping mapping) {
    ListedFiles::Paths paths;
    for (const std::filesystem::path& path : files) {
        const auto [known, fresh] = paths.emplace(path.filename().native(), path);
        if (fresh) continue;
        throw Error(Errc::rank_repeated, "two of the files are called " + safemap::quoted(known->first) +
                                             "; the other one is " + excerpt(known->second.native()))
            .with_path(path.native());
    }
    std::string name = files.empty() ? std::string() : files.front().parent_path().native();
    if (name.empty()) name = ".";
    return std::make_shared<ListedFiles>(std::move(name), std::move(paths), mapping);
}

}  // namespace safemap::SAFEMAP_ABI::open
