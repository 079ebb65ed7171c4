// Reads the folders of training frameworks that save torch files. Hugging Face shards are in read_hf_shards.cpp. The
// ranks of Megatron are read side by side: nothing is merged, because the files do not say how to merge them.
#include "base/folder.hpp"
#include "base/text.hpp"
#include "distributed/dcp/read_dcp.hpp"
#include "distributed/ranks/read_rank_files.hpp"
#include "distributed/zero/read_zero.hpp"
#include "names/file_names.hpp"
#include "open/layouts.hpp"
#include "open/read.hpp"

#include <safemap/advanced/file.hpp>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace safemap::SAFEMAP_ABI::open {

namespace {

/// Returns the name of the folder at a path, also if the path ends in "." or is a link; an empty text if it has none.
std::string name_of_folder(const std::string& path) {
    std::error_code failed;
    const std::filesystem::path real = std::filesystem::canonical(path, failed);
    return failed ? std::string() : real.filename().string();
}

/// Returns the folder of the tag: the one that the shape names, or the folder itself.
distributed::ZeroTag tag_of(const std::shared_ptr<const Folder>& folder, const FolderShape& shape) {
    if (!shape.inside) return {.folder = folder, .tag = name_of_folder(folder->name())};
    const std::string& name = shape.files.front();
    auto inner = folder->folder(name);
    if (!inner) throw Error(Errc::bad_tag, excerpt(name) + " cannot be opened as a folder");
    return {.folder = std::move(inner), .tag = name, .prefix = name + '/'};
}

}  // namespace

Contents read_deepspeed(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                        const OpenOptions& options, FaultSink& faults) {
    const auto read = shape.kind == ShapeKind::universal ? distributed::read_universal_tag : distributed::read_zero;
    Contents contents;
    reporting(faults, [&] { about_file(folder->name(), [&] { contents = read(tag_of(folder, shape), options); }); });
    return contents;
}

Contents read_rank_set(const RunFiles& set, const OpenOptions& options, const RunFiles& model) {
    distributed::RankFiles files{.folder = set.folder, .files = set.files};
    if (!options.manifest.empty()) files.manifest = open_file(options.manifest, mapping_of(options.access));
    if (model.folder)
        files.model = std::make_shared<distributed::RankFiles>(
            distributed::RankFiles{.folder = model.folder, .files = model.files});
    return distributed::read_rank_files(files, options);
}

Contents read_rank_sets(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                        const OpenOptions& options, FaultSink& faults) {
    Contents contents;
    reporting(faults, [&] {
        about_file(folder->name(), [&] { contents = read_rank_set({folder, shape.files}, options); });
        if (shape.optimizer.empty()) return;
        const auto set = names::rank_file(shape.optimizer.front());
        add_optimizer(contents, set ? set->set : listed(shape.optimizer), [folder, shape, options] {
            return about_file(folder->name(), [&] {
                return read_rank_set({folder, shape.optimizer}, options, {folder, shape.files});
            });
        });
    });
    return contents;
}

FileNames optimizer_files(const Folder& folder, const FileNames& files) {
    const auto model = files.empty() ? std::nullopt : names::rank_file(files.front());
    FileNames found = folder.list();
    std::erase_if(found, [&](const std::string& file) {
        const auto one = names::rank_file(file);
        if (!model || !one) return true;
        const auto pair = names::model_and_optimizer({model->set, one->set});
        return !pair || pair->optimizer != one->set;
    });
    return found;
}

Contents read_dcp(const std::shared_ptr<const Folder>& folder, const FolderShape& shape, const OpenOptions& options,
                  FaultSink& faults) {
    Contents contents;
    PathSink about(faults, folder->name());
    reporting(about, [&] { contents = distributed::read_dcp(folder, shape.files, options, about); });
    return contents;
}

std::optional<std::string> note_of_deepspeed_file(const std::filesystem::path& file, const Contents& /*contents*/) {
    const auto parsed = names::zero_name(file.filename().native());
    if (!parsed) return std::nullopt;
    if (parsed->kind == names::NameKind::zero_optimizer || parsed->kind == names::NameKind::zero_ranked_model)
        return "this is the part of rank " + std::to_string(parsed->rank) +
               " of a DeepSpeed checkpoint; open its folder, which gives whole tensors";
    return "this is one file of a DeepSpeed checkpoint; open its folder, which gives all tensors";
}

namespace {

void add_prefix(const std::string& prefix, Contents& contents) {
    for (LazyTensor& tensor : contents.tensors) tensor = tensor.renamed(prefix + tensor.name());
    for (SkippedObject& object : contents.skipped) object.name.insert(0, prefix);
    for (AliasGroup& group : contents.aliases)
        for (std::string& name : group) name.insert(0, prefix);
}

}  // namespace

Contents read_megatron(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                       const OpenOptions& options, FaultSink& faults) {
    Joined joined;
    OpenOptions parts = options;
    parts.as_parts = true;
    for (const std::string& file : shape.files) {
        const auto source = folder->open(file);
        if (!source) throw Error(Errc::rank_missing, excerpt(file) + " cannot be opened as a file");
        Contents one = read_file(source, parts, faults);
        add_prefix(file.substr(0, file.rfind('/') + 1), one);
        state::move_to_end(one.tensors, joined.contents.tensors);
        state::move_to_end(one.aliases, joined.contents.aliases);
        joined.add(one, file);
    }
    joined.contents.layout = TrainingLayout{.kind = "megatron", .world_size = shape.files.size()};
    joined.contents.notes.insert(
        joined.contents.notes.begin(),
        std::to_string(shape.files.size()) +
            " Megatron ranks, listed one by one and never merged: each tensor is the part of its "
            "rank");
    return std::move(joined.contents);
}

}  // namespace safemap::SAFEMAP_ABI::open
