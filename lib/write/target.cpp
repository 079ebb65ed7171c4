// Decides which files a save replaces.
#include "write/target.hpp"

#include "base/text.hpp"
#include "io/folder.hpp"
#include "safetensors/index.hpp"
#include "state/folder_shape.hpp"
#include "write/shards.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <system_error>

namespace safemap::SAFEMAP_ABI::write {

namespace {

io::Staging stage(const std::filesystem::path& out, const SaveOptions& options, const io::StagingOptions& job) {
    const bool one_file = is_one_file(out, options);
    const auto kind = one_file ? io::Staging::Kind::file : io::Staging::Kind::folder;
    if (options.overwrite) return io::Staging(out, kind, io::Existing::replace, job);
    const bool merges = !one_file && counts_as_new(out, options);
    return io::Staging(out, kind, merges ? io::Existing::merge : io::Existing::refuse, job);
}

}  // namespace

bool names_file(const std::filesystem::path& out) {
    return out.native().ends_with(".safetensors") || out.native().ends_with(".sft");
}

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
        const state::FolderNames names = state::names_in(*open_folder(out, Mapping::never));
        for (const std::string& name : names.files)
            if (name.ends_with(".safetensors") || name.ends_with(".index.json")) return false;
        return state::shape_of_folder(names).kind == state::ShapeKind::nothing;
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

std::vector<std::string> model_files(const std::filesystem::path& path) {
    const auto folder = open_folder(path, Mapping::never);
    std::vector<std::string> files = state::safetensors_heads(folder->list());
    if (files.size() > 1)
        throw Error(Errc::several_models, "the folder has several indexes, among them " + safemap::quoted(files[0]) +
                                              " and " + safemap::quoted(files[1]))
            .with_path(path.native())
            .with_hint("it is not clear which model to replace");
    if (files.empty() || files.front() == single_name) return files;
    CollectFaults ignored;  // a damaged index is replaced, too
    if (const auto source = folder->open(files.front()))
        for (std::string& shard : safetensors::read_index(*source, ignored).shards)
            if (shard.ends_with(".safetensors")) files.push_back(std::move(shard));
    return files;
}

Target::Target(const std::filesystem::path& out, const SaveOptions& options, const io::StagingOptions& job)
    : out_(out), overwrite_(options.overwrite), staging_(stage(out, options, job)) {
    for (const auto& folder : options.folders) folders_.push_back(folder.first);
    static_cast<void>(old_files());  // reports faults of the old files before the work, not after it
}

std::vector<std::string> Target::old_files() const {
    std::error_code ignored;
    if (!overwrite_ || !std::filesystem::is_directory(out_, ignored)) return {};
    std::vector<std::string> files = model_files(out_);
    for (const std::string& folder : folders_)
        if (std::filesystem::is_directory(out_ / folder, ignored))
            for (const std::string& file : model_files(out_ / folder)) files.push_back(folder + '/' + file);
    return files;
}

void Target::commit() { staging_.commit(old_files()); }

}  // namespace safemap::SAFEMAP_ABI::write
