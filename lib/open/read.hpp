// The readers of files, folders and indexes. open() gives them a sink that throws, verify() one that collects.
#pragma once

#include "base/faults.hpp"
#include "base/folder.hpp"
#include "names/folder_shape.hpp"
#include "state/contents.hpp"

#include <safemap/advanced/file.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::open {

using names::FileNames;
using names::FolderNames;
using names::FolderShape;
using names::has;
using names::Several;
using names::ShapeKind;
using state::Contents;
using state::Joined;

/// Reads one file. Recognises its format by its content, or by a name that ends in ".safetensors". The file of a rank
/// is read as read_part() says.
Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults);
/// Returns the contents of a torch file if it is the file of a rank and holds whole tensors: those of a world of one
/// rank, or replicated ones. Returns nothing if it is not the file of a rank; `plain` are its contents as a plain file.
/// Throws rank_missing if it holds parts of tensors, with a hint that names the files to give.
std::optional<Contents> read_part(const std::shared_ptr<const Source>& source, const Contents& plain,
                                  const OpenOptions& options);
/// Reads one safetensors file, for the table of formats.
Contents read_safetensors(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults);
/// Reads the tensors and the metadata of a safetensors file, as the file has them. Leaves the structure document in the
/// metadata.
Contents read_tensors(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults);
/// Reads files that are one checkpoint without an index, in this order. Reports duplicate_name if two files have the
/// same name.
Contents read_files(std::span<const std::shared_ptr<const Source>> sources, const OpenOptions& options,
                    FaultSink& faults);
/// Calls read(i, faults) for each of several files, on as many threads as `work` says. Returns the faults of each.
std::vector<std::vector<Error>> read_each(std::size_t files, const Work& work,
                                          const std::function<void(std::size_t i, FaultSink& faults)>& read);
/// Lists the records of a torch file that is a zip: their checksums, and the deflated records without one. Sets only
/// `stored` and `sources`, and nothing if the directory cannot be read. A file of another kind has no
/// records.
Contents read_records(const std::shared_ptr<const Source>& source, FaultSink& faults);
/// Lists the records of the zip that is `part` of a source, likewise. Sets only `stored`. Throws or reports the zip_*
/// faults.
Contents read_records(const std::shared_ptr<const Source>& source, Extent part, FaultSink& faults);
/// Returns the bytes of an item that is a zstd stream. Reads the stream once. Throws inflate_failed.
std::shared_ptr<const Source> unpacked_item(const std::string& name, const std::shared_ptr<const Source>& source,
                                            Extent packed);
/// The files of a training run, as paths in the folder. The folder is null if there is no run.
struct RunFiles {
    std::shared_ptr<const Folder> folder = {};
    FileNames files = {};
};
/// Returns the files of ranks in a folder of DeepSpeed or of rank files, by their names alone: for folders that cannot
/// be opened.
RunFiles files_of_run(const std::filesystem::path& path);

/// The reader of a kind of folder.
using FolderReader = Contents(const std::shared_ptr<const Folder>& folder, const FolderShape& shape,
                              const OpenOptions& options, FaultSink& faults);
FolderReader read_deepspeed;
FolderReader read_dcp;
FolderReader read_hf_shards;
FolderReader read_megatron;   ///< merges nothing
FolderReader read_rank_sets;  ///< the set of the optimizer on request
/// Reads the files of one set, one for each rank. If they are those of an optimizer, `model` are those of its model.
Contents read_rank_set(const RunFiles& set, const OpenOptions& options, const RunFiles& model = {});
/// Lets a model give the state of its optimizer, which is beside it under the name `where`.
void add_optimizer(Contents& contents, const std::string& where, std::function<Contents()> optimizer);
/// Returns a note for a file that is opened by itself, if it is one of the files of such a folder.
using NoteOfFile = std::optional<std::string>(const std::filesystem::path& file, const Contents& contents);
NoteOfFile note_of_deepspeed_file;
NoteOfFile note_of_hf_shard;
NoteOfFile note_of_file;  ///< asks the rows of all kinds of folders
/// Returns a note for a file of that name of a finished model, if its metadata says that its tensors are parts.
std::optional<std::string> note_of_parts(const Contents& contents, std::string_view name);
/// Reads the shards of an index. The shards are in `folder`.
Contents read_shards(const Folder& folder, const std::shared_ptr<const Source>& index, const OpenOptions& options,
                     FaultSink& faults);
/// A folder whose checkpoint has been found: the folder itself, or one in it.
struct Located {
    std::shared_ptr<const Folder> folder;
    FolderNames names = {};
    FolderShape shape = {};
    FileNames notes = {};
    std::shared_ptr<const Folder> optimizer = {};  ///< the folder with the state of the model's optimizer, if any
    /// The folders that were descended from, the innermost first.
    std::vector<std::shared_ptr<const Folder>> around = {};
};

/// Finds the checkpoint of a folder by the names of files. Throws not_a_checkpoint if a folder to descend into cannot
/// be opened. Reports no faults of the checkpoint: read_located() throws bad_tag for a damaged pointer.
Located locate(std::shared_ptr<const Folder> folder, std::uint64_t max_header_bytes = OpenOptions().max_header_bytes);
/// Reads the checkpoint. If there is no reader for its shape, throws unsupported_layout or another code of refuse().
Contents read_located(const Located& found, const OpenOptions& options, FaultSink& faults);
/// Returns how the files of a path are mapped.
Mapping mapping_of(Access access);
/// Reads several files that the caller names: the files of ranks, which are one set, or the shards of one checkpoint
/// without an index. Throws several_models if they are several sets.
Contents read_paths(std::span<const std::filesystem::path> paths, const OpenOptions& options, FaultSink& faults);
/// Reads a file, an index or a folder of the file system, or the paths that a glob matches. Throws path_not_found if a
/// glob matches nothing; several_models if it matches several folders or sets of files.
Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults);
/// Returns the findings about all pickles of a file or a folder, as safemap::examine() does.
Findings examine(const std::filesystem::path& path, const OpenOptions& options);
/// Adds the findings about the items of torch.distributed.checkpoint in a folder. Returns the files that have them.
std::set<std::string> examine_items(const std::filesystem::path& folder, const OpenOptions& options, Findings& to);
/// Returns the files of ranks in the folder of a model that are those of its optimizer. `files` are those of the model.
FileNames optimizer_files(const Folder& folder, const FileNames& files);
/// Returns true if `path` is a folder with a checkpoint of its optimizer in it, as SaveOptions::folders writes it.
bool has_optimizer(const std::filesystem::path& path);

/// Sets the tree that the names spell, and gives tensors the names that they have in it. Does so only if every name is
/// the base64 of a pickle of (tuple of keys, bool: the value is pickled), and every such value can be read. Otherwise
/// leaves names and tensors as they are, and adds a note if a value cannot be read. Throws unknown_global as `options`
/// say.
void take_olmo_names(Contents& contents, const OpenOptions& options);

/// Puts averages of weights in the places of the weights of `contents`, which were read from `path`. If that is a
/// folder and another folder `PATH_ema` is beside it, as diffusers saves `unet_ema` beside `unet`, the averages are
/// those of that folder. Throws as OpenOptions::ema says.
void take_averages(Contents& contents, const std::filesystem::path& path, const OpenOptions& options);

/// Moves the document, if there is one, from the metadata and the tensors to `tree`, and removes its digest from the
/// metadata. Reports bad_structure and checksum_mismatch. The lenient policy drops a document with such a fault and
/// adds a note. A digest without a document stays in the metadata.
void take_structure(Contents& contents, Policy policy, FaultSink& faults);

/// Adds a note if `path`, which has been read to `contents`, and the file beside it with the other ending do not have
/// the same fingerprint, or no longer have it. Ignores faults of the other file.
void note_stale_copy(const std::filesystem::path& path, const OpenOptions& options, Contents& contents);

}  // namespace safemap::SAFEMAP_ABI::open
