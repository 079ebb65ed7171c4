// Opens files, indexes and folders of the file system.
#include "base/folder.hpp"
#include "base/text.hpp"
#include "io/file_folder.hpp"
#include "names/model_names.hpp"
#include "open/formats.hpp"
#include "open/layouts.hpp"
#include "open/read.hpp"
#include "state/parts.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// A list of files as a folder, for readers of checkpoints with several files.
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

/// Returns a folder of these files, which need not be in one folder of the file system: each has its own name without
/// the path. It is called after the folder of the first file, where open() finds other files, such as a manifest, too.
/// Opens nothing. Throws rank_repeated if two files have the same name.
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

/// An exception for a save that has replaced the contents of a folder while they were read.
struct Replaced {};

/// A sink that passes faults on. If the folder is being replaced, it throws Replaced instead.
class SettledSink final : public FaultSink {
public:
    SettledSink(FaultSink& next, const Folder& folder, const Located& found)
        : next_(next), folder_(folder), found_(found) {}

    void fault(Error error) override {
        if (changed()) throw Replaced();
        next_.fault(std::move(error));
    }
    bool changed() const { return folder_.changed() || (found_.folder && found_.folder->changed()); }

private:
    FaultSink& next_;
    const Folder& folder_;
    const Located& found_;  ///< the folder inside `folder_` that is read, once it is found
};

/// Lets a model give the state of its optimizer, if a save has put it into a folder beside the model.
void add_saved_optimizer(const Located& found, const OpenOptions& options, Contents& contents) {
    if (contents.optimizer || !has_optimizer(found.folder->name())) return;
    const auto inner = found.folder->folder(names::optimizer_folder);
    if (!inner) return;
    contents.notes.push_back(
        std::string(names::optimizer_folder) +
        "/ has the state of the optimizer; Checkpoint::optimizer() gives it, --optimizer converts it");
    contents.optimizer = [inner, options] {
        ThrowFirst faults;
        return read_located(locate(inner, options.max_header_bytes), options, faults);
    };
}

/// Returns the path from the root; an empty path if there is no current folder any more.
std::filesystem::path absolute_path(const std::filesystem::path& path) {
    std::error_code failed;
    std::filesystem::path whole = std::filesystem::absolute(path, failed);
    return failed ? std::filesystem::path() : whole;
}

/// Reads a folder. If the folder is replaced meanwhile, reads it again: the contents may be of two models, or gone.
Contents read_settled(const std::filesystem::path& path, Mapping mapping, const OpenOptions& options,
                      FaultSink& faults) {
    constexpr int most_attempts = 20;
    for (int attempt = 1;; ++attempt) {
        const auto folder = open_folder(path, mapping);
        Located found;
        SettledSink settled(faults, *folder, found);
        try {
            found = locate(folder, options.max_header_bytes);
            Contents contents =
                read_located(found, options, attempt == most_attempts ? faults : static_cast<FaultSink&>(settled));
            add_saved_optimizer(found, options, contents);
            contents.opened = absolute_path(path);
            if (attempt == most_attempts || !settled.changed()) return contents;
        } catch (const Replaced&) {
            continue;
        } catch (const Error&) {
            if (attempt == most_attempts || !settled.changed()) throw;
        }
    }
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
    return file.has_parent_path() ? file.parent_path() : ".";
}

bool is_folder(const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
}

/// Reads the DCP folder that a file of metadata belongs to, whatever else the folder holds.
Contents read_metadata(const std::filesystem::path& file, Mapping mapping, const OpenOptions& options,
                       FaultSink& faults) {
    static_cast<void>(open_file(file, mapping));  // throws path_not_found
    Located found{.folder = open_folder(folder_of(file), mapping)};
    found.names = names::names_in(*found.folder);
    found.shape = names::shape_of_dcp(found.names, file.filename().native());
    Contents contents = read_located(found, options, faults);
    contents.opened = absolute_path(folder_of(file));
    return contents;
}

/// Returns true if all files are in the same folder, by their paths.
bool are_in_one_folder(std::span<const std::filesystem::path> files) {
    return std::all_of(files.begin(), files.end(),
                       [&](const auto& file) { return folder_of(file) == folder_of(files.front()); });
}

/// Reads the files of one set of ranks, or Hugging Face shards, that the caller lists.
Contents read_listed(std::span<const std::filesystem::path> paths, const FolderShape& shape, const FileNames& names,
                     const OpenOptions& options, FaultSink& faults) {
    const Mapping mapping = mapping_of(options.access);
    Located found{.folder = listed_files(paths, mapping), .names = {.files = names}, .shape = shape};
    if (!are_in_one_folder(paths)) return read_located(found, options, faults);
    found.around.push_back(open_folder(folder_of(paths.front()), mapping));
    Contents contents = read_located(found, options, faults);
    contents.opened = absolute_path(folder_of(paths.front()));
    return contents;
}

/// Returns the file of metadata among files of one DCP checkpoint: `.metadata`, else the first of a rank. Returns
/// nothing if other files are among them, or no metadata. Throws several_models for files of several folders.
std::optional<std::filesystem::path> metadata_among(std::span<const std::filesystem::path> files) {
    std::optional<std::filesystem::path> found;
    for (const std::filesystem::path& file : files) {
        const std::string name = file.filename().native();
        const bool is_metadata = names::is_dcp_metadata(name);
        if (!is_metadata && !names::is_kind(name, names::NameKind::dcp_similar)) return std::nullopt;
        const bool is_first = !found || (name == ".metadata" && found->filename() != ".metadata");
        if (is_metadata && is_first) found = file;
    }
    const auto is_elsewhere = [&](const auto& file) { return folder_of(file) != folder_of(*found); };
    const auto other = found ? std::find_if(files.begin(), files.end(), is_elsewhere) : files.end();
    if (other == files.end()) return found;
    throw Error(Errc::several_models, "files of torch.distributed.checkpoint (DCP) in several folders: " +
                                          listed({found->native(), other->native()}))
        .with_hint("give one of the folders");
}

/// Returns true for the only file of a run of one rank, and for one of several numbered shards, by its name.
bool is_of_set(const std::filesystem::path& path) {
    if (is_folder(path)) return false;
    const FileNames name = {path.filename().native()};
    return names::shape_of_files(name).kind != ShapeKind::nothing || names::set_of_shard(name.front());
}

Contents read_matches(const std::filesystem::path& glob, const OpenOptions& options, FaultSink& faults) {
    const std::vector<std::filesystem::path> paths = paths_matching(glob);
    if (paths.empty())
        throw Error(Errc::path_not_found, "nothing matches the glob, and no file has this name")
            .with_path(glob.native());
    if (paths.size() == 1 && !is_of_set(paths.front())) return read_path(paths.front(), options, faults);
    if (std::none_of(paths.begin(), paths.end(), is_folder)) return read_paths(paths, options, faults);
    FileNames names;
    for (const std::filesystem::path& path : paths) names.push_back(path.native());
    throw Error(Errc::several_models, "the glob matches " + std::to_string(names.size()) + " paths: " + listed(names))
        .with_path(glob.native())
        .with_hint("give one of them");
}

}  // namespace

Mapping mapping_of(Access access) {
    switch (access) {
        case Access::automatic: return Mapping::automatic;
        case Access::mapped: return Mapping::allowed;
        case Access::copied: return Mapping::never;
        case Access::private_copy: return Mapping::private_copy;
    }
    throw Error(Errc::invalid_argument, "unknown access mode");
}

Contents read_paths(std::span<const std::filesystem::path> paths, const OpenOptions& options, FaultSink& faults) {
    const Mapping mapping = mapping_of(options.access);
    if (const auto metadata = metadata_among(paths)) return read_metadata(*metadata, mapping, options, faults);
    FileNames names;
    for (const std::filesystem::path& path : paths) names.push_back(path.filename().native());
    const FolderShape shape = names::shape_of_files(names);
    if (shape.kind != ShapeKind::nothing) return read_listed(paths, shape, names, options, faults);
    std::vector<std::shared_ptr<const Source>> sources;
    sources.reserve(paths.size());
    for (const std::filesystem::path& path : paths) sources.push_back(open_file(path, mapping));
    Contents contents = read_files(sources, options, faults);
    if (!paths.empty() && are_in_one_folder(paths) && std::all_of(names.begin(), names.end(), names::is_usual_model))
        contents.opened = absolute_path(paths.front());
    return contents;
}

Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults) {
    if (is_glob(path)) return read_matches(path, options, faults);
    const Mapping mapping = mapping_of(options.access);
    if (is_folder(path)) return read_settled(path, mapping, options, faults);
    if (names::is_dcp_metadata(path.filename().native())) return read_metadata(path, mapping, options, faults);

    const auto source = open_file(path, mapping);
    if (!is_index(*source)) {
        Contents contents = read_file(source, options, faults);
        note_stale_copy(path, options, contents);
        if (auto note = note_of_file(path, contents)) contents.notes.push_back(std::move(*note));
        contents.opened = absolute_path(path);
        return contents;
    }
    Contents contents = read_shards(*open_folder(folder_of(path), mapping), source, options, faults);
    contents.opened = absolute_path(path);
    return contents;
}

void take_averages(Contents& contents, const std::filesystem::path& path, const OpenOptions& options) {
    const std::string name = path.has_filename() ? path.native() : path.parent_path().native();
    const std::filesystem::path beside = name + "_ema";
    if (!is_folder(path) || !is_folder(beside)) return state::take_averages(contents, nullptr);
    ThrowFirst faults;
    const Contents averages = read_path(beside, options, faults);
    state::take_averages(contents, &averages);
}

bool has_optimizer(const std::filesystem::path& path) {
    std::error_code ignored;
    const std::filesystem::path inner = path / names::optimizer_folder;
    // A link leads to a folder of some other checkpoint, and a save refuses to write to it.
    if (!std::filesystem::is_directory(std::filesystem::symlink_status(inner, ignored))) return false;
    try {
        const std::vector<std::string> files = open_folder(inner, Mapping::never)->list();
        const auto is_shard = [](const std::string& file) { return names::shard_file(file).has_value(); };
        return !names::safetensors_heads(files).empty() || std::any_of(files.begin(), files.end(), is_shard);
    } catch (const Error& error) {
        if (error.code() != Errc::permission_denied) throw;
        return false;
    }
}

}  // namespace safemap::SAFEMAP_ABI::open
