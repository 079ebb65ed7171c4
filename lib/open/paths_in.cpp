// Lists what may be checkpoints in a folder. Tested by tests/check/scan_test.cpp.
#include "open/paths_in.hpp"

#include "io/file_folder.hpp"
#include "names/file_names.hpp"
#include "names/folder_shape.hpp"
#include "names/model_names.hpp"

#include <map>
#include <optional>
#include <string>
#include <system_error>

namespace safemap::SAFEMAP_ABI::open {

namespace {

using names::ShapeKind;

/// Returns true if the checkpoint, or what is wrong with it, is in several files of the folder or below it.
bool is_whole(const names::FolderShape& shape) {
    switch (shape.kind) {
        case ShapeKind::nothing:
        case ShapeKind::index:  // there may be others: each is listed
        case ShapeKind::file:
        case ShapeKind::folder:
        case ShapeKind::companions:
        case ShapeKind::several: return false;
        case ShapeKind::unfinished: return !shape.inside;
        default: return true;
    }
}

PathsIn::Paths paths_of(const std::filesystem::path& folder, const names::FileNames& files) {
    PathsIn::Paths paths;
    for (const std::string& file : files) paths.push_back(folder / file);
    return paths;
}

/// Adds the sets of rank files that are not those of the checkpoint `read`: states of optimizers and more.
void add_other_sets(const std::filesystem::path& folder, const names::FileNames& files, const names::FileNames& read,
                    std::vector<PathsIn::Whole>& whole) {
    std::map<std::string, names::FileNames> sets;
    for (const std::string& file : files)
        if (const auto one = names::rank_file(file); one && !names::has(read, file)) sets[one->set].push_back(file);
    for (const auto& [set, ranks] : sets) whole.push_back({folder / set, paths_of(folder, ranks)});
}

void add_whole(const std::filesystem::path& folder, const names::FolderNames& found,
               std::vector<PathsIn::Whole>& whole) {
    for (const std::string& file : found.files) {
        const auto name = names::model_name(file);
        if (name && name->kind == names::ModelName::Kind::index) whole.push_back({.path = folder / file});
    }
    const names::FolderShape shape = names::shape_of_folder(found);
    const bool has_sets = shape.kind == ShapeKind::several && shape.several == names::Several::rank_sets;
    if (is_whole(shape)) whole.push_back({folder, paths_of(folder, shape.files)});
    if (shape.kind == ShapeKind::rank_files) add_other_sets(folder, found.files, shape.files, whole);
    else if (has_sets) add_other_sets(folder, found.files, {}, whole);
}

}  // namespace

PathsIn paths_in(const std::filesystem::path& folder) {
    const auto opened = open_folder(folder, Mapping::never);
    const names::FolderNames found = names::names_in(*opened);
    PathsIn paths;
    paths.is_cache = names::has(found.files, "CACHEDIR.TAG");
    add_whole(folder, found, paths.whole);
    paths.files = paths_of(folder, found.files);
    for (const std::string& other : opened->others()) paths.files.push_back(folder / other);
    for (const std::string& inner : opened->folders()) {
        std::error_code ignored;
        if (!std::filesystem::is_symlink(folder / inner, ignored)) paths.folders.push_back(folder / inner);
    }
    return paths;
}

std::optional<PathsIn::Paths> matches_of(const std::filesystem::path& path) {
    if (!is_glob(path)) return std::nullopt;
    return paths_matching(path);
}

}  // namespace safemap::SAFEMAP_ABI::open
