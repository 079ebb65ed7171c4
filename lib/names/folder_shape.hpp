// Decides which kind of checkpoint a folder holds, by names alone. Reading and saving use the same decision.
#pragma once

#include "base/folder.hpp"
#include "names/file_names.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::names {

/// The names in a folder, and in the folders directly in it.
struct FolderNames {
    FileNames files = {};    ///< sorted
    FileNames folders = {};  ///< sorted
    /// The names in each of `folders`, without a level below it. Those of one of the saves of a run have that level, if
    /// the save has no model of its own. Empty if they were not listed.
    std::vector<FolderNames> below = {};
    // Text of the files that name a folder, if they exist.
    std::optional<std::string> latest = {};
    std::optional<std::string> latest_universal = {};
    std::optional<std::string> latest_checkpointed_iteration = {};
    /// The components with weights that `model_index.json` lists. Empty if it does not exist or cannot be read.
    std::vector<std::string> listed_components = {};
    /// The folders that `modules.json` lists, likewise.
    std::vector<std::string> listed_modules = {};
    std::optional<std::string> main_ref = {};  ///< text of `refs/main` in the cache of a model hub
};

/// The kind of checkpoint in a folder. The comment of a kind says what `FolderShape::files` names.
enum class ShapeKind : std::uint8_t {
    nothing,  ///< nothing is recognised

    // Read by safemap.
    index,           ///< the index
    file,            ///< the only file of weights, or the finished model
    shards,          ///< numbered shards without an index
    megatron_ranks,  ///< the file of each rank; they are not merged
    folder,          ///< the folder to read instead; in the cache of a model hub, a path of two folders
    deepspeed,       ///< the folder of the tag, or the files of ranks if the folder itself is one
    universal,       ///< the folder of the tag, or the folder `zero`
    rank_files,      ///< the files of one set that are there
    dcp,             ///< the metadata
    hf_shards,       ///< the safetensors shards, which have DCP information

    // Recognised and not read.
    offloaded,            ///< the folder `offloaded_tensors` of DeepSpeed
    torch_checkpointing,  ///< `metadata.pkl`
    nanotron,             ///< `checkpoint_metadata.json`
    megatron_zarr,        ///< the folders of arrays

    // Wrong or ambiguous.
    companions,   ///< files that trainers write beside a model, without a model
    several,      ///< the models
    bad_tag,      ///< the file that names the tag, or a revision in the cache of a model hub
    no_snapshot,  ///< the snapshot that the cache of a model hub lacks
    unfinished,   ///< the files that the save has left
    shards_lack,  ///< the numbered shards that are there
};

/// The models of a folder that is ambiguous.
enum class Several : std::uint8_t {
    indexes,
    files,      ///< files of weights without an index
    rank_sets,  ///< FolderShape::files are the globs of the sets
    folders,    ///< folders in the folder
    snapshots,  ///< snapshots in the cache of a model hub, which does not say which one to read
    pipeline,   ///< folders and files; components without weights are in FolderShape::others
};

/// The decision about a folder: its kind, and the files for that kind.
struct FolderShape {
    ShapeKind kind = ShapeKind::nothing;
    Several several = {};
    FileNames files = {};
    /// Files and folders that are not read, and that the user should know of.
    FileNames others = {};
    /// For the models of a pipeline: a file of weights in each folder whose weights are all of another framework.
    FileNames foreign = {};
    FileNames unfinished = {};  ///< for folder: folders beside it whose save was interrupted
    /// The state of the model's optimizer beside it. For rank_files: the files of its set. For folder: the folder.
    FileNames optimizer = {};
    /// For rank_files: the folder of DCP beside them that holds the state of the model's optimizer, if there is one.
    std::string optimizer_inside = {};
    /// True for a finished model as the rules for training folders define it: small files beside it belong to it.
    bool finished = false;
    std::string fault = {};   ///< for bad_tag
    std::string newest = {};  ///< for several and bad_tag: the newest of the saves of a run; empty if none is
    /// For unfinished, deepspeed and universal: true if the names are folders in this one.
    bool inside = false;
};

/// Returns true if there is something to open, or to refuse with a reason.
inline bool holds_checkpoint(const FolderShape& shape) {
    return shape.kind != ShapeKind::nothing && shape.kind != ShapeKind::companions;
}

/// Returns the shape of the folder itself: the first row of the table that fits. docs/format.md lists the rows.
FolderShape shape_of_folder(const FolderNames& names);
/// Returns the shape of files that the caller names one by one: one set of rank files, or safetensors shards with DCP
/// information. Returns ShapeKind::nothing if one of the files is something else.
FolderShape shape_of_files(const FileNames& files);
/// Returns the shape of a DCP folder whose metadata is `file`: that file, or that of all ranks.
FolderShape shape_of_dcp(const FolderNames& names, std::string_view file);
/// Returns shape_of_folder(). If the folder itself holds no model, returns the one folder in it that holds one.
FolderShape shape_of(const FolderNames& names);
/// Returns the shape of the training state beside a finished model: that of shape_of_folder() without the model.
FolderShape shape_beside_model(const FolderNames& names);

/// Lists the names in the folder and, unless a finished model makes this needless, in the folders inside. Reads the
/// files that name a folder, and opens nothing else.
FolderNames names_in(const Folder& folder);

/// Returns the safetensors indexes of a folder. Without an index, returns `STEM.safetensors` if it exists.
FileNames safetensors_heads(const FileNames& files, std::string_view stem = "model");

}  // namespace safemap::SAFEMAP_ABI::names
