// Decides which kind of checkpoint a folder holds, by names alone. Reading and saving use the same decision.
#pragma once

#include "base/folder.hpp"

#include <safemap/source.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::state {

using FileNames = std::vector<std::string>;

/// The names in a folder, and in the folders directly in it.
struct FolderNames {
    FileNames files = {};    ///< sorted
    FileNames folders = {};  ///< sorted
    /// What each of `folders` holds, without a level below it. Empty: nobody has looked.
    std::vector<FolderNames> below = {};
    // The text of the files that name a folder, where they exist.
    std::optional<std::string> latest = {};
    std::optional<std::string> latest_universal = {};
    std::optional<std::string> latest_checkpointed_iteration = {};
};

/// What a folder holds. The comment says what `FolderShape::files` names.
enum class ShapeKind : std::uint8_t {
    nothing,  ///< nothing is recognised

    // Read by safemap.
    index,           ///< the index
    file,            ///< the only file of weights, or the finished model
    megatron_ranks,  ///< the file of each rank; nothing merges them
    folder,          ///< the folder to read instead

    // Recognised and not read.
    hf_shards,            ///< safetensors shards with DCP information
    dcp,                  ///< the metadata
    deepspeed,            ///< the folder of the tag, or the files of ranks if the folder itself is one
    universal,            ///< the folder of the tag, or the folder `zero`
    offloaded,            ///< DeepSpeed, with `offloaded_tensors`
    rank_files,           ///< the files of one set
    torch_checkpointing,  ///< `metadata.pkl`
    nanotron,             ///< `checkpoint_metadata.json`
    megatron_zarr,        ///< the folders of arrays

    // Wrong or ambiguous.
    companions,  ///< files that trainers write beside a model, and no model
    several,     ///< the models
    bad_tag,     ///< the file that names the tag
    unfinished,  ///< what the save has left
    ranks_lack,  ///< the missing files
};

struct FolderShape {
    ShapeKind kind = ShapeKind::nothing;
    FileNames files = {};
    /// Files and folders that are passed over, and which the user should know of.
    FileNames others = {};
    /// A finished model in the sense of training-folder rules: small files beside it belong to it.
    bool finished = false;
    /// For several: "indexes". For bad_tag: the fault.
    std::string what = {};
    /// For several: the models are folders in this one.
    bool inside = false;
};

/// Returns what the folder itself holds: the first row of the table that fits. docs/format.md lists the rows.
FolderShape shape_of_folder(const FolderNames& names);
/// As shape_of_folder(); if nothing in the folder itself is a model, the one folder in it that holds one.
FolderShape shape_of(const FolderNames& names);
/// Returns the part of shape_of_folder() that remains if there were no finished model: training state beside it.
FolderShape shape_beside_model(const FolderNames& names);

/// Lists the folder and, unless a finished model decides without them, the folders in it. Reads the files that name a
/// folder, and opens nothing else.
FolderNames names_in(const Folder& folder);

/// Returns the safetensors indexes of a folder; without one, `model.safetensors` if it is there.
FileNames safetensors_heads(const FileNames& files);

/// A file that holds the part of one rank.
struct RankFile {
    std::string set;  ///< a glob over all files of the set: "model_world_size_4_rank_*.pt"
    std::uint64_t rank = 0;
    std::optional<std::uint64_t> world_size = {};  ///< if the name says it
};

/// Returns nothing if `file` is not named as the file of a rank.
std::optional<RankFile> rank_file(std::string_view file);
/// Returns how many files of its set are among `files`, or the world size that its name says.
std::uint64_t ranks_in_set(const RankFile& one, const FileNames& files);

/// The folder beside a model that holds the state of its optimizer, as safetensors.
inline constexpr const char* optimizer_folder = "optimizer";

/// Returns whether a file of that name may hold weights.
bool is_weights(std::string_view name);

}  // namespace safemap::SAFEMAP_ABI::state
