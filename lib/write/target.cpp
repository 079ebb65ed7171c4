// Decides which files a save replaces.
#include "write/target.hpp"

#include "base/text.hpp"
#include "io/file_folder.hpp"
#include "names/folder_shape.hpp"
#include "names/model_names.hpp"
#include "safetensors/index.hpp"
#include "safetensors/shard_files.hpp"

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

/// Returns those of `files` that are in the folder `inner` of a save, without its name; without a folder if it is
/// empty.
std::vector<std::string> inside(const std::vector<std::string>& files, const std::string& inner) {
    const std::size_t begin = inner.empty() ? 0 : inner.size() + 1;
    std::vector<std::string> names;
    for (const std::string& file : files)
        if (inner.empty() ? file.find('/') == file.npos : file.starts_with(inner + '/'))
            names.push_back(file.substr(begin));
    return names;
}

/// Throws already_exists if a folder would not open as the model in `added` once `old_files` are removed and it is
/// there: if it keeps another one that is preferred, such as `model.safetensors` to `adapter_model.safetensors`, or
/// that is as good.
void require_opens(const std::filesystem::path& path, const std::vector<std::string>& old_files,
                   const std::vector<std::string>& added) {
    std::error_code ignored;
    names::FolderNames names;
    if (std::filesystem::is_directory(path, ignored)) names = names::names_in(*open_folder(path, Mapping::never));
    const auto is_new = [&](const std::string& name) { return names::has(added, name); };
    std::erase_if(names.files, [&](const std::string& name) { return names::has(old_files, name) || is_new(name); });
    names.files.insert(names.files.end(), added.begin(), added.end());
    std::sort(names.files.begin(), names.files.end());
    const names::FolderShape shape = names::shape_of_folder(names);
    const auto other = std::find_if_not(shape.files.begin(), shape.files.end(), is_new);
    if (!shape.files.empty() && other == shape.files.end()) return;
    const bool of_ranks = names::shard_file(added.front()).has_value();
    Error error(Errc::already_exists,
                "the folder has " + (shape.files.empty() ? std::string("another model") : safemap::quoted(*other)) +
                    ", which would be opened in place of " + (of_ranks ? "the files of ranks" : added.back()));
    throw std::move(error.with_path(path.native()).with_hint("remove it, or save to another folder"));
}

}  // namespace

std::vector<std::string> replaced_files(const std::filesystem::path& out, const SaveOptions& options) {
    std::error_code ignored;
    if (!options.overwrite || !std::filesystem::is_directory(out, ignored)) return {};
    std::vector<std::string> files = model_files(out, options.max_header_bytes, options.stem);
    for (const auto& [folder, checkpoint] : options.folders)
        if (std::filesystem::is_directory(out / folder, ignored))
            for (const std::string& file : model_files(out / folder, options.max_header_bytes))
                files.push_back(folder + '/' + file);
    return files;
}

std::vector<std::string> notes_on_other_models(const std::filesystem::path& out, const SaveOptions& options,
                                               const std::vector<std::string>& replaced) {
    std::error_code ignored;
    if (!options.overwrite || is_one_file(out, options) || !std::filesystem::is_directory(out, ignored)) return {};
    std::vector<std::string> notes;
    for (const std::string& file : open_folder(out, Mapping::never)->list()) {
        const auto name = names::model_name(file);
        if (!name || name->kind == names::ModelName::Kind::shard || name->ending != ".safetensors") continue;
        if (name->stem == options.stem || names::has(replaced, file)) continue;
        notes.push_back(safemap::quoted(file) + " in the output folder is of another model, and stays");
    }
    return notes;
}

io::JoinedSibling join(const std::filesystem::path& out, const SaveOptions& options, const std::string& key) {
    return {out, kind_of(out, options), options.overwrite ? io::Existing::replace : io::Existing::merge, key,
            options.durable};
}

Target::Target(const std::filesystem::path& out, const SaveOptions& options, const std::vector<std::string>& files,
               const io::StagingOptions& job)
    : out_(out),
      options_{.stem = options.stem,
               .max_header_bytes = options.max_header_bytes,
               .folders = options.folders,
               .overwrite = options.overwrite},
      staging_(stage(out, options, job)),
      replaced_(replaced_files(out_, options_)) {
    if (is_one_file(out, options)) return;
    require_opens(out, replaced_, inside(files, {}));
    for (const auto& [folder, checkpoint] : options.folders)
        require_opens(out / folder, inside(replaced_, folder), inside(files, folder));
}

void Target::commit() { staging_.commit(replaced_files(out_, options_)); }

}  // namespace safemap::SAFEMAP_ABI::write
