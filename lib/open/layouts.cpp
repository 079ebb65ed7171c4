// The error code and the text for each layout that safemap does not read. When a layout gets a reader, its row is
// removed.
#include "open/layouts.hpp"

#include "base/folder.hpp"
#include "base/text.hpp"
#include "names/model_names.hpp"
#include "open/read.hpp"

#include <safemap/advanced/text.hpp>
#include <safemap/error.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>

namespace safemap::SAFEMAP_ABI::open {

namespace {

struct Layout {
    ShapeKind kind;
    std::string_view name;  ///< value of `layout.kind` in the command line's output, if there is one
    std::string_view what;
    std::string_view hint;
};

constexpr Layout layouts[] = {
    {ShapeKind::offloaded, "deepspeed", "a DeepSpeed checkpoint (ZeRO) with tensors offloaded to NVMe",
     "save it without offloading, or save a full state dict"},
    {ShapeKind::torch_checkpointing, "torch_checkpointing", "a checkpoint of torch_checkpointing",
     "save a full state dict with torch.save, or save with torch.distributed.checkpoint"},
    {ShapeKind::nanotron, "nanotron", "a nanotron checkpoint",
     "convert it to a model of Hugging Face with the scripts of nanotron"},
    {ShapeKind::megatron_zarr, "zarr", "a Megatron checkpoint with zarr arrays",
     "load it with Megatron and save it with --ckpt-format torch_dist"},
};

constexpr Layout nemo = {ShapeKind::nothing, ".nemo", "an archive of NeMo (.nemo)",
                         "unpack it with tar -xf FILE and give the folder or the file of weights in it"};

constexpr Layout part_of_dcp = {ShapeKind::nothing, "dcp",
                                "one file of a checkpoint of torch.distributed.checkpoint (DCP)", "give its folder"};

const Layout* layout_of(ShapeKind kind) {
    const auto* found =
        std::find_if(std::begin(layouts), std::end(layouts), [kind](const Layout& row) { return row.kind == kind; });
    return found == std::end(layouts) ? nullptr : found;
}

[[noreturn]] void refuse_layout(const Layout& layout, const std::string& told_by,
                                std::string_view why = "safemap does not read it yet") {
    Error error(Errc::unsupported_layout, "this is " + std::string(layout.what) + ", layout '" +
                                              std::string(layout.name) + "', recognised by " + told_by + "; " +
                                              std::string(why));
    error.with_hint(layout.hint);
    throw error;
}

FileNames inside(std::string_view folder, FileNames names) {
    for (std::string& name : names) name = (std::filesystem::path(folder) / name).native();
    return names;
}

[[noreturn]] void refuse_pipeline(const FolderShape& shape, std::string_view folder) {
    const FileNames paths = inside(folder, shape.files);
    std::string message = counted(paths.size(), "model") + " of a pipeline (model_index.json): " + listed(paths);
    if (!shape.others.empty()) message += "; without weights: " + listed(shape.others);
    if (!shape.foreign.empty())
        message += "; with weights that safemap does not read: " + listed(inside(folder, shape.foreign));
    throw Error(Errc::several_models, message)
        .with_hint("each is a model of its own: mkdir OUT; safemap convert " + shell_word(paths.front()) + ' ' +
                   shell_word("OUT/" + shape.files.front()) + "; and so on");
}

/// Returns what to do with files that may be those of ranks under other names. Such files are pickles.
std::string hint_of_ranks(const FileNames& files) {
    if (std::any_of(files.begin(), files.end(), names::ends_as_safetensors)) return {};
    return "; " + std::string(names_of_ranks) + "them";
}

/// Returns a word for the models of an ambiguous folder.
std::string_view plural(Several several) {
    switch (several) {
        case Several::indexes: return "indexes";
        case Several::files: return "files of weights and no index";
        case Several::rank_sets: return "sets of rank files";
        case Several::snapshots: return "snapshots, and no refs/main that names one of them";
        default: return "folders that hold a checkpoint";
    }
}

/// Returns the hint to give the newest of the saves of a run.
std::string hint_of_newest(const FolderShape& shape, std::string_view folder) {
    return "give one of them; the newest is " + shell_word(inside(folder, {shape.newest}).front());
}

/// Returns true for the name of an index or of a file of weights.
bool names_model(std::string_view name) { return names::is_weights(name) || name.ends_with(".index.json"); }

/// Returns a name and what has it: "model.safetensors (a broken link)".
std::string with_kind(const Folder& folder, const std::string& name) {
    const std::string kind = folder.other_kind(name);
    return kind.empty() ? name : name + " (" + kind + ')';
}

/// Returns true for the name that a program gives a file while it downloads it.
bool is_download(std::string_view name) {
    constexpr std::string_view endings[] = {".incomplete", ".part", ".crdownload", ".aria2", ".download"};
    return std::any_of(std::begin(endings), std::end(endings), [=](auto ending) { return name.ends_with(ending); });
}

/// Adds a hint about a name that has no regular file.
void hint_at_kind(Error& error, const Folder& folder, const std::string& name) {
    const bool is_link = folder.other_kind(name).find("link") != std::string::npos;
    error.with_hint(is_link ? "restore the file that the link leads to, or download it again"
                            : "safemap reads regular files: write the content to a file first");
}

[[noreturn]] void refuse_several(const FolderShape& shape, std::string_view folder) {
    if (shape.several == Several::pipeline) refuse_pipeline(shape, folder);
    // The folder's own files are listed by name. Sets, and inner folders, are listed as paths that can be typed.
    const bool sets = shape.several == Several::rank_sets;
    const bool as_paths = sets || shape.several == Several::folders || shape.several == Several::snapshots;
    Error error(Errc::several_models, std::to_string(shape.files.size()) + ' ' + std::string(plural(shape.several)) +
                                          ": " + listed(as_paths ? inside(folder, shape.files) : shape.files));
    if (sets) error.with_hint("give one of these globs in quotes");
    else if (!shape.newest.empty()) error.with_hint(hint_of_newest(shape, folder));
    else if (shape.several == Several::files)
        error.with_hint(
            "give one of them, or all of them together if they are the shards of one checkpoint; `safemap "
            "scan` says what each is" +
            hint_of_ranks(shape.files));
    else error.with_hint("give one of them; `safemap scan` says what each is");
    throw error;
}

[[noreturn]] void refuse_snapshot(const FolderShape& shape, std::string_view folder) {
    Error error(Errc::shard_missing,
                "refs/main names " + excerpt(shape.files.front()) + ", but there is no such folder");
    error.with_hint("download the model again" +
                    (shape.others.empty() ? "" : ", or give one of " + listed(inside(folder, shape.others))));
    throw error;
}

[[noreturn]] void refuse_unfinished(const FolderShape& shape, std::string_view folder) {
    Error error(Errc::unfinished_checkpoint,
                shape.inside ? "the checkpoints in the folder have no .metadata: " + listed(inside(folder, shape.files))
                             : "parts of a checkpoint of torch.distributed.checkpoint (DCP) without .metadata: " +
                                   listed(shape.files));
    error.with_hint(
        "the save was interrupted, or .metadata is on the disk of the node with rank 0: copy all files into one "
        "folder");
    throw error;
}

/// Adds the paths of the folders deeper inside that hold a checkpoint: NeMo-RL has policy/weights/model. Looks at no
/// more than `left` folders.
void add_deeper(const Folder& folder, const std::string& path, int levels, std::size_t& left, FileNames& found) {
    for (const std::string& name : folder.folders()) {
        if (left == 0) return;
        --left;
        const std::shared_ptr<const Folder> inner = name.starts_with('.') ? nullptr : folder.folder(name);
        if (!inner) continue;
        const std::string at = path + '/' + name;
        if (names::holds_checkpoint(names::shape_of(names::names_in(*inner)))) found.push_back(at);
        else if (levels > 1) add_deeper(*inner, at, levels - 1, left, found);
    }
}

[[noreturn]] void refuse_nothing(const FolderNames& names, const Folder& folder) {
    const FileNames others = folder.others();
    if (names.files.empty() && names.folders.empty() && others.empty())
        throw Error(Errc::not_a_checkpoint, "the folder holds no files");
    FileNames all = names.files;
    for (const std::string& name : others) all.push_back(with_kind(folder, name));
    for (const std::string& name : names.folders)
        all.push_back(names_model(name) ? name + " (a folder, not a file)" : name + '/');
    Error error(Errc::not_a_checkpoint, "the folder holds neither an index nor a file of weights, but " + listed(all));
    constexpr int levels = 4;
    std::size_t left = 256;
    FileNames deeper;
    try {
        add_deeper(folder, folder.name(), levels, left, deeper);
    } catch (const Error&) {  // a folder that cannot be listed says nothing
    }
    if (!deeper.empty()) error.with_hint("give the folder of a checkpoint in it: " + listed(deeper));
    const auto other = std::find_if(others.begin(), others.end(), names_model);
    if (other != others.end()) hint_at_kind(error, folder, *other);
    if (std::any_of(names.files.begin(), names.files.end(), is_download))
        error.with_hint("a download has not finished: start it again");
    const auto state = std::find_if(names.files.begin(), names.files.end(), names::is_weights);
    if (state != names.files.end())
        error.with_hint("files of the state of a trainer open by their own paths: " +
                        shell_word(folder.name() + '/' + *state));
    if (std::any_of(names.files.begin(), names.files.end(), names::is_foreign_weights))
        error.with_hint("safemap reads weights of PyTorch and safetensors, and no other framework's");
    throw error;
}

[[noreturn]] void refuse_set(const names::ShardSet& set, const Folder& folder) {
    Error error = names::lacks_shards(set);
    const FileNames others = models_that_are_no_files(folder);
    if (others.empty()) throw error;
    throw Error(error.code(), error.message() + "; not read: " + listed(others)).with_hint(error.hint());
}

}  // namespace

std::string listed(const FileNames& names) {
    constexpr std::size_t most = 8;
    return names_text(names, most);
}

FileNames models_that_are_no_files(const Folder& folder) {
    FileNames models = folder.others();
    std::erase_if(models, [](const std::string& name) { return !names_model(name); });
    for (std::string& name : models) name = with_kind(folder, name);
    return models;
}

void refuse(const FolderShape& shape, const FolderNames& names, const Folder& folder) {
    if (const Layout* layout = layout_of(shape.kind)) refuse_layout(*layout, listed(shape.files));
    switch (shape.kind) {
        case ShapeKind::several: refuse_several(shape, folder.name());
        case ShapeKind::unfinished: refuse_unfinished(shape, folder.name());
        case ShapeKind::bad_tag:
            throw Error(Errc::bad_tag, shape.files.front() + ": " + excerpt(shape.fault))
                .with_hint(!shape.newest.empty()                      ? hint_of_newest(shape, folder.name())
                           : shape.files.front().starts_with("refs/") ? "give a folder in snapshots/ instead"
                                                                      : "give the folder of one tag instead");
        case ShapeKind::no_snapshot: refuse_snapshot(shape, folder.name());
        case ShapeKind::shards_lack: refuse_set(names::shard_sets(shape.files).front(), folder);
        default: refuse_nothing(names, folder);
    }
}

void refuse_part(std::string_view file) {
    const bool is_part = names::is_dcp_metadata(file) || names::is_kind(file, names::NameKind::dcp_similar);
    if (is_part) refuse_layout(part_of_dcp, excerpt(file), "it is not read by itself");
    if (names::is_kind(file, names::NameKind::dcp_unfinished)) refuse_unfinished({.files = {std::string(file)}}, {});
    if (file.ends_with(".nemo")) refuse_layout(nemo, excerpt(file));
}

}  // namespace safemap::SAFEMAP_ABI::open
