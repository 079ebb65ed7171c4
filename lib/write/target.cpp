// Decides which files a save replaces.
#include "write/target.hpp"

#include "base/text.hpp"
#include "io/file_folder.hpp"
#include "names/folder_shape.hpp"
#include "names/model_names.hpp"
#include "safetensors/index.hpp"
#include "safetensors/shard_files.hpp"
#include "write/shards.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <system_error>

namespace safemap::SAFEMAP_ABI::write {

namespace {

io::Staging::Kind kind_of(const std::filesystem::path& out, const SaveOptions& options) {
    return is_one_file(out, options) ? io::Staging::Kind::file : io::Staging::Kind::folder;
}

io::Staging stage(const std::filesystem::path& out, const SaveOptions& options, const io::StagingOptions& job) {
    const auto kind = kind_of(out, options);
    if (options.overwrite) return io::Staging(out, kind, io::Existing::replace, job);
    const bool merges = kind == io::Staging::Kind::folder && counts_as_new(out, options);
    return io::Staging(out, kind, merges ? io::Existing::merge : io::Existing::refuse, job);
}

/// Adds the files of ranks: by their names, and by their content. Readers of such files take all that are there, so
/// none of an older set may stay beside new ones.
void add_rank_shards(const Folder& folder, const std::vector<std::string>& all, std::uint64_t max_header_bytes,
                     std::vector<std::string>& files) {
    std::vector<std::string> others;
    for (const std::string& name : all) {
        if (names::has(files, name)) continue;
        if (names::shard_file(name)) files.push_back(name);
        else others.push_back(name);
    }
    for (std::string& name : safetensors::shard_files(folder, std::move(others), max_header_bytes))
        files.push_back(std::move(name));
}

}  // namespace

bool names_file(const std::filesystem::path& out) { return names::ends_as_safetensors(out.native()); }

bool is_one_file(const std::filesystem::path& out, const SaveOptions& options) {
    if (!options.one_file) return names_file(out);
    if (!out.native().ends_with('/')) return true;
    throw Error(Errc::invalid_argument, "expected one file, but the path ends in a slash").with_path(out.native());
}

bool counts_as_new(const std::filesystem::path& out) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(out, ignored)) return false;
    try {
        // No name that a save would write may exist already, not even as something other than a file.
        const names::FolderNames names = names::names_in(*open_folder(out, Mapping::never));
        for (const std::string& name : names.files)
            if (name.ends_with(".safetensors") || name.ends_with(".index.json")) return false;
        return names::shape_of_folder(names).kind == names::ShapeKind::nothing;
    } catch (const Error&) {
        return false;
    }
}

bool counts_as_new(const std::filesystem::path& out, const SaveOptions& options) {
    if (!counts_as_new(out)) return false;
    std::error_code ignored;
    return std::all_of(options.folders.begin(), options.folders.end(), [&](const auto& folder) {
        const std::filesystem::path path = out / folder.first;
        return !std::filesystem::is_directory(path, ignored) || counts_as_new(path);
    });
}

std::vector<std::string> model_files(const std::filesystem::path& path, std::uint64_t max_header_bytes,
                                     const std::string& stem) {
    const auto folder = open_folder(path, Mapping::never);
    const std::vector<std::string> all = folder->list();
    std::vector<std::string> files = names::safetensors_heads(all, stem);
    if (files.size() > 1)
        throw Error(Errc::several_models, "the folder has several indexes, among them " + safemap::quoted(files[0]) +
                                              " and " + safemap::quoted(files[1]))
            .with_path(path.native())
            .with_hint("it is not clear which model to replace");
    if (!files.empty() && files.front().ends_with(".json")) {
        CollectFaults ignored;  // a damaged index is replaced, too
        if (const auto source = folder->open(files.front()))
            for (std::string& shard : safetensors::read_index(*source, ignored).shards)
                if (shard.ends_with(".safetensors")) files.push_back(std::move(shard));
    }
    add_rank_shards(*folder, all, max_header_bytes, files);
    return files;
}

namespace {

/// Returns the shape that a folder has once `old_files` are removed and the file `added` is there.
names::FolderShape shape_with(const std::filesystem::path& path, const std::vector<std::string>& old_files,
                              const std::string& added) {
    std::error_code ignored;
    names::FolderNames names;
    if (std::filesystem::is_directory(path, ignored)) names = names::names_in(*open_folder(path, Mapping::never));
    std::erase_if(names.files, [&](const std::string& name) { return names::has(old_files, name) || name == added; });
    names.files.insert(std::upper_bound(names.files.begin(), names.files.end(), added), added);
    return names::shape_of_folder(names);
}

[[noreturn]] void refuse_other_model(const std::filesystem::path& path, const names::FolderShape& shape,
                                     std::string_view wanted) {
    Error error(Errc::already_exists,
                "the folder has " +
                    (shape.files.empty() ? std::string("another model") : safemap::quoted(shape.files.front())) +
                    ", which would be opened in place of " + std::string(wanted));
    throw std::move(error.with_path(path.native()).with_hint("remove it, or save to another folder"));
}

}  // namespace

void require_ranks_open(const std::filesystem::path& path, const std::vector<std::string>& old_files) {
    const auto shape = shape_with(
        path, old_files, names::spelled({.kind = names::NameKind::hf_shard, .shard = 1, .file = 1, .files = 1}));
    if (shape.kind != names::ShapeKind::hf_shards) refuse_other_model(path, shape, "the files of ranks");
}

std::vector<std::string> notes_on_other_models(const std::filesystem::path& out, const SaveOptions& options) {
    std::error_code ignored;
    if (!options.overwrite || is_one_file(out, options) || !std::filesystem::is_directory(out, ignored)) return {};
    const std::vector<std::string> replaced = model_files(out, options.max_header_bytes, options.stem);
    std::vector<std::string> notes;
    for (const std::string& file : open_folder(out, Mapping::never)->list()) {
        const auto name = names::model_name(file);
        if (!name || name->kind == names::ModelName::Kind::shard || name->ending != ".safetensors") continue;
        if (name->stem == options.stem || names::has(replaced, file)) continue;
        notes.push_back(safemap::quoted(file) + " in the output folder is of another model, and stays");
    }
    return notes;
}

void require_stem_opens(const std::filesystem::path& path, const std::vector<std::string>& old_files,
                        const std::string& stem) {
    const std::string file = shard_name(stem, 0, 1);
    const auto shape = shape_with(path, old_files, file);
    if (shape.files != std::vector<std::string>{file}) refuse_other_model(path, shape, file);
}

io::JoinedSibling join(const std::filesystem::path& out, const SaveOptions& options, const std::string& key) {
    return {out, kind_of(out, options), options.overwrite ? io::Existing::replace : io::Existing::merge, key,
            options.durable};
}

Target::Target(const std::filesystem::path& out, const SaveOptions& options, const io::StagingOptions& job)
    : out_(out),
      overwrite_(options.overwrite),
      stem_(options.stem),
      max_header_bytes_(options.max_header_bytes),
      staging_(stage(out, options, job)) {
    for (const auto& folder : options.folders) folders_.push_back(folder.first);
    const std::vector<std::string> old = old_files();  // reports faults of the old files before the work, not after it
    const bool renamed = options.stem != SaveOptions().stem && !is_one_file(out, options);
    if (renamed && options.ranks == 0) require_stem_opens(out, old, options.stem);
    if (options.ranks == 0) return;
    require_ranks_open(out, old);
    for (const std::string& folder : folders_) require_ranks_open(out / folder, inside(old, folder));
}

std::vector<std::string> Target::old_files() const {
    std::error_code ignored;
    if (!overwrite_ || !std::filesystem::is_directory(out_, ignored)) return {};
    std::vector<std::string> files = model_files(out_, max_header_bytes_, stem_);
    for (const std::string& folder : folders_)
        if (std::filesystem::is_directory(out_ / folder, ignored))
            for (const std::string& file : model_files(out_ / folder, max_header_bytes_))
                files.push_back(folder + '/' + file);
    return files;
}

std::vector<std::string> Target::inside(const std::vector<std::string>& files, const std::string& folder) {
    std::vector<std::string> names;
    for (const std::string& file : files)
        if (file.starts_with(folder + '/')) names.push_back(file.substr(folder.size() + 1));
    return names;
}

void Target::commit() { staging_.commit(old_files()); }

}  // namespace safemap::SAFEMAP_ABI::write
