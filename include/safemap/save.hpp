// save(): writes a checkpoint to a file, a folder or a sink.
#pragma once

#include <safemap/checkpoint.hpp>
#include <safemap/progress.hpp>
#include <safemap/sink.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// How tensors are distributed over shards. All strategies keep the order of the tensors, and give the same shards for
/// the same tensors.
enum class ShardStrategy : std::uint8_t {
    greedy,    ///< fills each shard as far as possible: huggingface_hub's rule
    balanced,  ///< as many shards as greedy, of near equal sizes, the largest as small as possible
    /// Greedy, but never splits a layer. A layer is all tensors whose names are equal up to and including the first
    /// number between dots or slashes: `model.layers.7.mlp.up` and `model.layers.7.norm` are in `model.layers.7`.
    by_prefix
};

/// The library whose `model.safetensors.index.json` is reproduced: byte for byte, except for the pairs that SaveOptions
/// and the checkpoint add to its `metadata`.
enum class IndexStyle : std::uint8_t {
    hub,          ///< huggingface_hub
    transformers  ///< sorted, with "total_parameters": the number of elements of all tensors written
};

/// When to write the structure document: everything in a nested state dict besides its tensors. docs/format.md
/// specifies the document.
enum class StructurePolicy : std::uint8_t {
    /// For a nested tree, and for a safetensors file whose document names dtypes that safetensors does not have.
    /// Otherwise, as for a flat state dict, no document is written.
    automatic,
    keep,  ///< always
    drop,  ///< never
};

struct SaveReport;
class Team;

/// Options of save(): the contents and layout of the files, and how they are written.
struct SaveOptions {
    /// The dtype of the tensors that a selection selects.
    struct DtypeOf {
        Selection tensors = {};
        Dtype dtype = {};
    };

    // Contents and layout.
    /// Writes one file, whatever the name of `out`. If false, the name decides. A file never replaces a folder.
    bool one_file = false;
    /// Dtype that every F64, F32, F16, BF16 and F8 tensor of a model is cast to. The state of an optimizer in the same
    /// checkpoint keeps its dtypes, see `optimizer_dtype`; so do F8_E8M0 tensors (scales) and all other dtypes. A cast
    /// to an F8 dtype makes no scales; a note says so. Throws unsupported_cast if casts to `dtype` are not possible, or
    /// if LazyTensor::cast() has already cast a tensor to another dtype; and quantized_cast if it would cast quantised
    /// numbers without their scales, or scales without the numbers, also if these are in other files: see "Quantised
    /// tensors" in docs/format.md. Unset: no casts.
    std::optional<Dtype> dtype = std::nullopt;
    /// Dtypes of single tensors, which win over `dtype`. If several of them select a tensor, the last one counts. They
    /// cast the same dtypes as `dtype` does, and throw as it does.
    std::vector<DtypeOf> dtype_of = {};
    /// Tensors that neither `dtype` nor `dtype_of` casts, and that `apply_scales` leaves as they are.
    std::optional<Selection> keep_dtype = std::nullopt;
    /// Dtype that tensors of the optimizer's state are cast to, here and in the folder "optimizer" of `folders`. Unset:
    /// they keep their dtypes, whatever `dtype` says, and a note counts them. `dtype_of` and `keep_dtype` win. These
    /// are tensors of a checkpoint in the `state` and `param_groups` of an optimizer of torch, or below an entry that
    /// is called after an optimizer, a scheduler, a loss scaler or a random number generator; a list of tensors has
    /// none.
    std::optional<Dtype> optimizer_dtype = std::nullopt;
    /// Begins the names of the files in a folder: `STEM.safetensors`, or `STEM-00001-of-00002.safetensors` and
    /// `STEM.safetensors.index.json`. Checkpoint::stem() has that of a model, such as "adapter_model" of PEFT, which
    /// finds no other name. Does not apply to one file, to files of ranks, and to `folders`. Throws invalid_argument if
    /// it is empty, begins with a dot, has a slash or a NUL, or more than 200 bytes.
    std::string stem = "model";
    /// Multiplies quantised F8 tensors by their scales, where tensors beside them hold those: see "Quantised tensors"
    /// in docs/format.md. The product is computed in F32 and rounded once, as torch does, to the dtype of `dtype_of` or
    /// `dtype`; if neither selects the tensor, to BF16. Tensors of scales and of ranges of inputs are left out;
    /// `SaveReport::skipped` lists them. Copied files lose what describes the quantisation, with a note. Memory does
    /// not grow with the size of a tensor.
    ///
    /// The block size of scales comes from `weight_block_size` in config.json (of the checkpoint's folder, or in
    /// `extras`), or from the shapes. Throws quantized_cast if it is not clear which scale belongs to which number, and
    /// for numbers that are packed, as GPTQ, bitsandbytes and FP4 pack them, or that have a second factor, an offset,
    /// zero points or an order of columns. Tensors that `keep_dtype` selects stay as they are, with their scales, which
    /// `dtype` then does not cast.
    bool apply_scales = false;
    /// Maximum bytes of tensors in one shard; a larger tensor gets its own shard. The default is huggingface_hub's.
    std::uint64_t max_shard_size = 5'000'000'000;
    /// Maximum bytes of a header. The default is the limit of the reference implementation, whose readers refuse longer
    /// ones. Shards are cut at it, or at this limit if it is lower. Throws header_too_large beyond this limit: in a
    /// single file, the file of a rank, and a shard of one tensor, or of one layer that ShardStrategy::by_prefix does
    /// not split. At most 4,294,967,295: a larger number counts as that. OpenOptions::max_header_bytes is the limit for
    /// reading.
    std::uint64_t max_header_bytes = 100'000'000;
    /// Pairs for the metadata. A single file gets them in its `__metadata__`, with "format": "pt" unless they have a
    /// format. With several shards, the index gets the pairs in its `metadata`, without the format. Each shard gets
    /// only "format": "pt", as huggingface_hub writes it, and with `checksums` the digests of its tensors.
    std::map<std::string, std::string> metadata = {};
    /// Writes `metadata` and nothing else: no format, no metadata of the checkpoint, no aliases of tied tensors, no
    /// structure document. Notes say what is lost. A single file is then byte for byte what save_file() of the
    /// reference implementation (the Python package safetensors) writes, except for the order of several pairs: the
    /// reference's order varies, the order here is by key. Several shards get no metadata; the index gets the pairs and
    /// its totals. Throws invalid_argument together with `checksums` or StructurePolicy::keep.
    bool exact_metadata = false;
    /// With `exact_metadata`: gives a file without pairs an empty `__metadata__`, as save_file(…, metadata={}) does. If
    /// false, such a file has no `__metadata__`. Checkpoint::has_metadata() shows which of the two a file has.
    bool empty_metadata = false;
    /// Alignment of the data in each file, in bytes: 8, 64, 256 or 4096. The data begins at a multiple of it.
    std::uint32_t alignment = 8;
    /// Aligns tensors too: in each file, tensors whose sizes are multiples of `alignment` come first, so that each of
    /// them begins at a multiple of it. Both groups are in the order of the reference implementation and there are no
    /// gaps, so every reader accepts the file; only the order differs from that of the reference.
    bool align_tensors = false;
    ShardStrategy strategy = ShardStrategy::greedy;
    IndexStyle index_style = IndexStyle::hub;
    /// When to write the structure document of a checkpoint. A list of tensors has no structure.
    StructurePolicy structure = StructurePolicy::automatic;
    /// Writes a tensor for each name of a tied tensor, and no metadata that declares the tie. Readers that look for
    /// each name find it, and the files are larger. Has no effect on a list of tensors.
    bool untie = false;
    /// Writes a digest of each tensor, computed while it is written, and a digest of all tensors to the metadata:
    /// `safemap.xxh3_128` and `safemap.checkpoint_xxh3_128`, see docs/format.md. verify() checks them; other readers
    /// ignore them. Digests that the metadata already has are never kept.
    bool checksums = false;
    /// Small files to copy to the folder `out` in the same commit as the tensors; Checkpoint::extras() lists the ones
    /// of a model folder. Its notes go to the report. A save to a single file copies no extras.
    ///
    /// | in `out`, under the name of the extra | result |
    /// | --- | --- |
    /// | the extra itself | stays |
    /// | another regular file, with `overwrite` | replaced |
    /// | another regular file, without `overwrite` | stays; a note if it differs |
    /// | anything that is not a regular file | stays, with a note |
    Extras extras = {};
    /// Other checkpoints to save in the same commit, by the names of their folders in `out`: all of them appear, or
    /// none. The state of an optimizer belongs in "optimizer"; verify() of `out` checks that folder too.
    ///
    /// - Each folder gets the files of a save of its own, with its own index. Of the options for contents and layout,
    ///   only `max_shard_size`, `max_header_bytes`, `alignment`, `align_tensors`, `strategy`, `index_style`,
    ///   `structure` and `checksums` apply to it, and to "optimizer" `optimizer_dtype`. The options for how files are
    ///   written apply to the whole save.
    /// - With `overwrite`, the model in an existing folder is replaced, and every other file in it stays. A folder that
    ///   is not named here does not change.
    /// - If `out` is replaced file by file, a program that opens `out/optimizer`, and not `out`, may see files of both
    ///   checkpoints until the save, or the next save to `out`, has finished.
    /// - The report counts all checkpoints together.
    /// - Throws invalid_argument if a name is empty, begins with a dot, has a slash, or is the name of another file of
    ///   the save; if `out` is a single file; and in a ShardWriter.
    std::map<std::string, Checkpoint> folders = {};
    /// Writes Hugging Face shards: a file `shard-RRRRR-model-00001-of-00001.safetensors` for each of that many ranks,
    /// in the place of shards and an index. 0: none. The files say in their metadata which part of which tensor they
    /// hold, as torch's HuggingFaceStorageWriter does; `open()` and torch's HuggingFaceStorageReader give whole
    /// tensors. docs/hf-shards.md describes the files. In `folders`, too.
    ///
    /// - Each tensor is cut along `rank_dimension` as torch.chunk cuts it: into slices of the same length, the last one
    ///   shorter. If there are fewer indices than ranks, the last ranks get no part of the tensor. A rank without a
    ///   part of any tensor has no file, as with torch.
    /// - The first rank also gets what cannot be cut: tensors without that dimension, without elements, of sub-byte
    ///   dtypes or of dtypes that only a structure document names; and that document.
    /// - `max_shard_size`, `strategy` and `index_style` do not apply.
    /// - With `overwrite`, all files of an older set of ranks are removed, and so is a model that was saved otherwise.
    /// - Throws invalid_argument for more than 99,999 ranks, if `out` is a single file, with `exact_metadata`, and in a
    ///   ShardWriter.
    std::uint32_t ranks = 0;
    /// The dimension along which `ranks` cuts tensors.
    std::uint32_t rank_dimension = 0;

    // How files are written.
    /// Replaces an existing file or model at `out` once the new checkpoint is complete. If false, throws already_exists
    /// for it. A folder without a checkpoint in it counts as new, with and without this option: its files stay.
    bool overwrite = false;
    /// Continues a save that was killed, or cancelled with this option, if it saved the same sources to the same path
    /// with the same options: shards that it had finished are not written again. If there is no such save, or anything
    /// differs, starts from the beginning. If this save is cancelled before its commit, its finished shards stay in the
    /// hidden folder for the next one; the hint of the error says so. Every other failure removes them. A source is the
    /// same if it is a file with the same inode, size and time of modification. Data in memory, and single files, are
    /// always written again. After a save with `durable` = false, a save can continue only until the next boot, and
    /// only with the same `durable`.
    bool resume = false;
    /// Flushes everything to the disk before it becomes visible. If false, the kernel flushes later, in about half a
    /// minute, and the save returns earlier.
    ///
    /// If the power fails or the system crashes before that, `out` may hold the old checkpoint, the new one, nothing,
    /// or files that are empty, short or contain zeros, and the replaced checkpoint may be lost. Digests (`checksums`)
    /// show the damage. The same holds if the disk or a server fails to store the data, which is reported only if it is
    /// known when the file is closed. If only the process is killed, the old or the new checkpoint is complete, as with
    /// `durable`.
    bool durable = true;
    /// Evicts the bytes of the sources from the page cache once they have been written, so that a large save does not
    /// displace what other programs have cached.
    bool drop_cache = false;
    /// Progress, cancellation and threads. A number of threads above 8 counts as 8; 0 means 4 if a tensor is in
    /// several pieces, such as one of many ranks, and else 2, or 1 on one processor.
    Work work = {};
    /// The processes that make this save together, each with a call of its own and the same options; null: this one
    /// alone. `out` must be on a file system that all of them share. safemap/advanced/team.hpp has the class. It must
    /// outlive the call.
    ///
    /// - Each process writes a part of the bytes, and reads what it writes; with `checksums`, also what digests of
    ///   tensors need that several processes write. The files are the same as those of one process.
    /// - Rank 0 creates the files, calls `on_plan` and commits. Its report is complete; in the others, counts of casts
    ///   are those of their own part.
    /// - Throws in every process if one of them fails: the error of the lowest rank that failed. If their plans
    ///   differ, or one of them does not see `out`, it is invalid_argument, and nothing is written.
    /// - The launcher of the processes notices if one dies. If it ends all of them then, the save can be resumed.
    Team* team = nullptr;
    bool plan_only = false;  ///< computes the layout and the report, and writes nothing
    /// If false, throws no_tensors before anything is written, if the output would have neither a tensor nor a
    /// structure document.
    bool allow_empty = true;
    /// Called once with the plan, on the thread that saves, before space is allocated and any tensor is written; with
    /// `plan_only`, too. The plan is a report in which `casts` have no counts of values. If the function throws, the
    /// exception passes through and nothing is left behind.
    std::function<void(const SaveReport& plan)> on_plan = {};
};

/// The result of a save, or of a plan.
struct SaveReport {
    struct Count {
        std::uint64_t tensors = 0;
        std::uint64_t bytes = 0;  ///< bytes of the values as stored
    };
    struct File {
        std::uint64_t tensors = 0;
        std::uint64_t bytes = 0;  ///< size of the whole file
    };
    /// The casts from one dtype to another. With `apply_scales`, `from` is the dtype of the numbers, and the values are
    /// the products, in F32. Products that are written as F32 are not cast.
    struct Cast {
        Dtype from = {};
        Dtype to = {};
        std::uint64_t tensors = 0;
        std::uint64_t values = 0;      ///< all values that were cast
        std::uint64_t overflowed = 0;  ///< values that were finite, and are beyond the range of the new dtype
        std::uint64_t non_finite = 0;  ///< values that were NaN or infinite before the cast
    };
    struct Unsupported {
        Dtype dtype = {};
        std::uint64_t tensors = 0;
    };
    /// How the tensors are read, and how much of their storages they use.
    struct Reading {
        Count copied = {};    ///< tensors written as stored: neither cast nor gathered
        Count gathered = {};  ///< strided or transposed tensors, or in several pieces: put into row-major order
        Count scaled = {};    ///< tensors that are multiplied by their scales; the bytes are those of the F8 numbers
        /// Tensors that are only a part of their storage, or share it with tensors of another shape, offset or strides.
        Count views = {};
        /// Bytes that the save leaves behind: bytes of the storages of the tensors, and of all storages of a `.pt`,
        /// that no written tensor refers to. Exact, unless tensors with gaps share a storage and have more than 2^18
        /// runs of bytes together; then it is a lower bound.
        std::uint64_t unreferenced_bytes = 0;
    };
    struct Layout {
        std::vector<File> files = {};         ///< one for each of `SaveReport::files`
        std::uint64_t unaligned_tensors = 0;  ///< tensors that do not begin at a multiple of `alignment` in their file
        std::uint64_t buffer_bytes = 0;       ///< maximum size of the save's buffers
    };

    std::vector<std::string> files = {};    ///< file names, relative to the folder written to; the index is last
    std::uint64_t tensors = 0;              ///< tensors written
    std::uint64_t bytes_read = 0;           ///< tensor bytes read from the sources
    std::uint64_t bytes_written = 0;        ///< bytes of all files
    std::vector<std::string> notes = {};    ///< human sentences: large layers, lost order, files that were not removed
    std::vector<std::string> resumed = {};  ///< the files that an earlier save had finished
    /// Names of the extras that are copied. They are not in `files`, and their bytes are not in `bytes_written`.
    std::vector<std::string> extras = {};
    /// Tensors whose dtypes have no name in safetensors, if no structure document keeps them; with `apply_scales`, the
    /// scales, too.
    std::vector<SkippedObject> skipped = {};
    std::vector<Unsupported> unsupported = {};  ///< the dtypes of `skipped`
    std::vector<Cast> casts = {};               ///< counts no values of the files in `resumed`
    Reading reading = {};
    Layout layout = {};
};

/// Writes `tensors` to `out`, and returns a report of the files and tensors written. All or nothing: the files appear
/// together, or none appears; the end of this comment has the exception. A tensor whose dtype has no name in
/// safetensors is not an error: it is left out, and `SaveReport::skipped` lists it.
///
/// Example:
///     safemap::SaveReport report = safemap::save("out/", tensors, {.dtype = safemap::Dtype::bf16, .overwrite = true});
///     for (const std::string& file : report.files) std::cout << file << '\n';
///     std::cout << report.bytes_written << " bytes\n";
///
/// Files:
/// - `out` becomes one file if its name ends in ".safetensors" or ".sft", or if `one_file` is set. Otherwise it becomes
///   a folder of shards that are named and split as huggingface_hub does, with a `model.safetensors.index.json`; a
///   single shard is called `model.safetensors` and has no index. SaveOptions::stem takes the place of `model`.
/// - With a slash at its end, `out` is always a folder, and `one_file` throws invalid_argument.
/// - If the name of `out` has more than 242 bytes, throws invalid_argument: the hidden folder's name contains it.
/// - An existing folder without a checkpoint counts as new: its files stay.
/// - Tensors are split in the given order, and sorted inside each file as the reference implementation sorts them (see
///   also `align_tensors`). The same input gives the same bytes.
///
/// Steps: space is allocated first; files are filled in a hidden folder beside `out`, flushed (if `durable`), and
/// moved into place by one rename, or one by one in the cases below. If the process is killed, `out` has the old or the
/// new checkpoint, and the next save to `out` removes or resumes what is left in the hidden folder. Memory is a few
/// fixed buffers, about 32 MiB at most, whatever the size of a tensor; `SaveReport::layout` has the maximum.
///
/// With `overwrite`, the old checkpoint stays complete until the new one replaces it, so the disk needs space for both.
/// Sources may be in the old checkpoint, and views of it stay valid.
/// - A file is replaced by a rename. The new file gets the permissions of the old one.
/// - In a folder, the old model is removed: its index and the shards that the index names, or its `model.safetensors`.
///   Every other file stays.
/// - A folder is exchanged as a whole, so that other programs see the old or the new model at every moment. Inner
///   folders are built again, with hard links to their files.
/// - If a folder cannot be exchanged, its files are replaced one by one. This happens with inner folders that have many
///   entries or contain mounts, at the root of a mount, and on a file system without hard links or without exchange;
///   see docs/saving.md. safemap sees the old or the new model at every moment. So do other programs if the two models
///   have no file name in common; otherwise they may briefly see files of both.
///
/// Extras are read while they are copied. An extra that changed since it was opened throws file_changed. An extra
/// without a source, with a folder in its name, or with the name of another file of the save, throws invalid_argument.
///
/// Throws:
/// - already_exists if `out` exists and `overwrite` is not set; if `overwrite` would replace a folder by a file or a
///   file by a folder; if a model that stays in a folder would be opened in place of the new one, or is as good; or if
///   the hidden folder's name, `.NAME.safemap-tmp`, is in use by something that no save made
/// - path_not_found if the parent folder is missing
/// - several_models if the folder to replace has several indexes
/// - name_collision; bad_name for a name with a NUL
/// - invalid_argument for an invalid alignment, for names or metadata that are not UTF-8, and for options that
///   contradict each other
/// - unsupported_cast, quantized_cast, shape_overflow, header_too_large
/// - no_space, permission_denied
/// - busy if another process is saving to `out`
/// - file_changed if a source has changed since it was opened, or if another program has created something at `out`
///   during the save, which stays
/// - commit_list_damaged if an interrupted save to `out` cannot be finished
/// - cancelled, and whatever reading throws
///
/// After an exception nothing of the new checkpoint is left, and the old one has not changed. Two cases differ, and the
/// hint of the error says so:
/// - If a save with `resume` is cancelled, its finished shards stay in the hidden folder.
/// - If the save fails while it replaces files one by one, the new checkpoint counts.
SAFEMAP_API SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors,
                            const SaveOptions& options = {});
/// Saves a checkpoint, which may come from open(), select(), renamed() or below(). Writes:
///
/// - its tensors
/// - its metadata, except the keys that `options.metadata` also has (see also `exact_metadata`)
/// - for each alias of a tied tensor: `__metadata__[alias] = stored name`
/// - if `structure` says so, the structure document in `__metadata__["safemap.structure"]`; a document of more than 1
/// MiB
///   in a U8 tensor `~structure`. In it, tensors that were not selected are objects without a value.
/// - with a document or `checksums`, and if the checkpoint was read from a single `.pt`: the fingerprint of that file
///   in `__metadata__["safemap.source"]`
///
/// With several shards, all these pairs are in the `metadata` of the index, not in `__metadata__`.
///
/// Throws as save() of a list of tensors does; structure_too_large with StructurePolicy::keep; and name_collision if an
/// alias of a tied tensor is a metadata key with a meaning: `format`, or a key that begins with `safemap.`.
SAFEMAP_API SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint,
                            const SaveOptions& options = {});

/// Saves one file to a sink: to memory, or to storage of the caller. Layout, header and bytes are those of a save to a
/// path with `one_file`. The options `overwrite`, `resume`, `durable` = false, `extras` and `folders` concern paths and
/// throw invalid_argument here. Exceptions of the sink pass through. Otherwise throws as a save to a path does before
/// and while it copies tensors.
SAFEMAP_API SaveReport save(Sink& sink, std::span<const LazyTensor> tensors, const SaveOptions& options = {});
SAFEMAP_API SaveReport save(Sink& sink, const Checkpoint& checkpoint, const SaveOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
