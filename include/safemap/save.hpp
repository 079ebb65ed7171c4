// Writes checkpoints: laid out first, written in parallel, visible all at once.
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

/// How tensors are put into shards. All keep the order of the tensors, and give the same shards for the same tensors.
enum class ShardStrategy : std::uint8_t {
    greedy,    ///< each is filled as far as it goes: huggingface_hub's rule
    balanced,  ///< as many as greedy, of near equal sizes, the largest as small as it can be
    by_prefix  ///< greedy, but a layer, which is all that has one name up to its first number, is never split
};

/// Whose `model.safetensors.index.json` is written, byte for byte.
enum class IndexStyle : std::uint8_t {
    hub,          ///< huggingface_hub's
    transformers  ///< sorted, with "total_parameters": the elements of all tensors written
};

/// When the structure document is written: what a nested state dict is besides its tensors. docs/format.md has it.
enum class StructurePolicy : std::uint8_t {
    /// For a nested tree, and for a file of safetensors whose document names dtypes that safetensors does not have. Any
    /// other flat dict or OrderedDict of tensors becomes an ordinary file.
    automatic,
    keep,  ///< always
    drop,  ///< never
};

struct SaveReport;

struct SaveOptions {
    // What is written.
    /// Writes one file whatever the name of `out`: false leaves that to the name. A file is never put in the place of a
    /// folder.
    bool one_file = false;
    /// Casts every F64, F32, F16, BF16 and F8 tensor; others stay. Nothing: dtypes stay.
    std::optional<Dtype> dtype = std::nullopt;
    /// Tensors that `dtype` leaves alone.
    std::optional<Selection> keep_dtype = std::nullopt;
    /// Bytes of tensors in one shard at most; a larger tensor has a shard of its own. huggingface_hub's default.
    std::uint64_t max_shard_size = 5'000'000'000;
    /// Written to `__metadata__` of a single file, with "format": "pt" where it gives no format; or to the index's
    /// `metadata`, without the format: shards have "format": "pt", and nothing else, as huggingface_hub writes them.
    std::map<std::string, std::string> metadata = {};
    /// Writes `metadata` and nothing else: no format, nothing of a checkpoint's own, no other names of tied tensors, no
    /// structure document; notes say what is lost by that. One file is then, byte for byte, what the reference's
    /// save_file() writes; of several pairs, which it has in an order that is another each time, the order here is by
    /// key. Several shards have no metadata, and the index has the pairs besides its totals. With `checksums`, or
    /// StructurePolicy::keep, it is invalid_argument.
    bool exact_metadata = false;
    /// With `exact_metadata`, a file that gets no pairs has an empty `__metadata__`, as of save_file(…, metadata={}).
    /// False: it has none. Checkpoint::has_metadata() tells which a file has.
    bool empty_metadata = false;
    /// The data of each file begins at a multiple of this: 8, 64, 256 or 4096.
    std::uint32_t alignment = 8;
    /// In each file, tensors whose sizes are multiples of `alignment` come first, so that each of them begins at a
    /// multiple of it too. Both groups are in the reference's order, nothing stands between tensors, and every reader
    /// reads the file; the reference would only have written it in another order.
    bool align_tensors = false;
    ShardStrategy strategy = ShardStrategy::greedy;
    IndexStyle index_style = IndexStyle::hub;
    /// Of a checkpoint, where that is saved; a list of tensors has no structure.
    StructurePolicy structure = StructurePolicy::automatic;
    /// Writes a digest of each tensor as it is written, and of all of them, to the metadata, where other readers pass
    /// them by and verify() finds them: `safemap.xxh3_128` and `safemap.checkpoint_xxh3_128`, see docs/format.md. Those
    /// that the metadata has already are never kept.
    bool checksums = false;
    /// Small files that are copied to the folder `out`, in the same commit as the tensors; `Checkpoint::extras()` lists
    /// those of a model folder. The notes go to the report. A file that is the extra itself is left as it is. Another
    /// file of the same name in `out` is replaced with `overwrite`; without it, one that differs stays, and a note says
    /// so. What is not a regular file always stays, with a note. A save to a single file copies no extras.
    Extras extras = {};
    /// Other checkpoints, by the names of the folders in `out` that they are saved to, in the same commit: all of them
    /// appear, or none. "optimizer" is where the state of an optimizer belongs; verify() of `out` looks into that one,
    /// too. Each folder gets the files that a save to it gives, with an index of its own; `max_shard_size`,
    /// `alignment`, `align_tensors`, `strategy`, `index_style`, `structure` and `checksums` hold for them, and of the
    /// other options none. With `overwrite` the model in a folder of that name is replaced, and every other file in it
    /// stays; a folder that is not named here stays as it is. A name that is empty, begins with a dot, has a slash in
    /// it, or is that of another file of the save, and folders where one file is written, are invalid_argument. Where
    /// `out` is replaced file by file, whoever opens such a folder itself may see files of both for a moment. Reports
    /// count all checkpoints together, and `casts` those of `out` alone. ShardWriter writes none: invalid_argument.
    std::map<std::string, Checkpoint> folders = {};

    // How.
    /// What stands at the target is replaced, when the new checkpoint is complete. False: it is refused.
    bool overwrite = false;
    /// Goes on where a process that was killed while it saved the same sources to the same place, with the same
    /// options, had come to: files that it had finished are not written again. Where there is none, or anything
    /// differs, begins anew. A source is the same when it is a file of the same inode, size and time of
    /// modification; what is read from memory is always written anew, and so is a single file.
    bool resume = false;
    /// Brings everything to the disk before it counts. False saves that time, and leaves it to the kernel, which takes
    /// half a minute or so. If the power fails or the system crashes until then, what stands at `out` may be the old,
    /// the new, nothing, or files that are empty, short or have zeros in them, and what was replaced may be gone with
    /// it; digests (`checksums`) tell the damage. The same holds where the disk, or a server, fails to take what it was
    /// given: that is an error only where it is known when the file is closed. A process that is killed costs nothing:
    /// the old or the new is whole, as ever. What it left is resumed until the next boot, by a save with the same
    /// `durable`.
    bool durable = true;
    /// At most 8 threads; 0: one per processor, at most 2.
    Work work = {};
    bool plan_only = false;  ///< lays out and reports; touches no file
    /// Is told what will be written, before the first byte is: a report without counts of values in `casts`. What it
    /// throws passes through, and nothing is left.
    std::function<void(const SaveReport& plan)> on_plan = {};
};

/// What a save has written, or would write.
struct SaveReport {
    struct Count {
        std::uint64_t tensors = 0;
        std::uint64_t bytes = 0;  ///< of the values as they are stored
    };
    struct File {
        std::uint64_t tensors = 0;
        std::uint64_t bytes = 0;  ///< of the whole file
    };
    struct Cast {
        Dtype from = {};
        Dtype to = {};
        std::uint64_t tensors = 0;
        std::uint64_t values = 0;      ///< cast in all
        std::uint64_t overflowed = 0;  ///< finite before, and beyond the range of the new dtype
        std::uint64_t non_finite = 0;  ///< NaN or infinite before the cast
    };
    struct Unsupported {
        Dtype dtype = {};
        std::uint64_t tensors = 0;
    };
    /// How tensors are read, and what they see of the storages that they stand in.
    struct Reading {
        Count copied = {};  ///< written as they stand: neither cast nor gathered
        Count gathered =
            {};  ///< strided, as transposed ones are, or in several pieces: their elements are put in order
        /// That see only a part of their storage, or share it with others that see it otherwise.
        Count views = {};
        /// Bytes of the storages that the tensors are in, and of all storages of a `.pt`, that no tensor which is
        /// written refers to: what the save leaves behind. Never too many; where tensors that leave gaps share a
        /// storage, and have more than 2^18 runs of bytes together, gaps may count as referred to.
        std::uint64_t unreferenced_bytes = 0;
    };
    struct Layout {
        std::vector<File> files = {};         ///< of each of `SaveReport::files`
        std::uint64_t unaligned_tensors = 0;  ///< that do not begin at a multiple of `alignment` in their file
        std::uint64_t buffer_bytes = 0;       ///< the most that the buffers of the save take
    };

    std::vector<std::string> files = {};    ///< as OUT names them; the index last
    std::uint64_t tensors = 0;              ///< written
    std::uint64_t bytes_read = 0;           ///< tensor bytes read from the sources
    std::uint64_t bytes_written = 0;        ///< bytes of all files
    std::vector<std::string> notes = {};    ///< in sentences: large layers, lost order, what could not be cleared away
    std::vector<std::string> resumed = {};  ///< of `files`, those that were finished before; casts do not count in them
    /// Names of the extras that are copied. They are not in `files`, and their bytes are not in `bytes_written`.
    std::vector<std::string> extras = {};
    /// Tensors of dtypes that safetensors has no name for, if no structure document keeps them.
    std::vector<SkippedObject> skipped = {};
    std::vector<Unsupported> unsupported = {};  ///< their dtypes
    std::vector<Cast> casts = {};
    Reading reading = {};
    Layout layout = {};
};

/// Writes `tensors` to `out`: one file where `out` ends in ".safetensors" or ".sft", or `one_file` is set, else a
/// folder of shards named and split as huggingface_hub does, with `model.safetensors.index.json` (one shard:
/// `model.safetensors`, no index). With a slash behind it, `out` is always a folder, and `one_file` is
/// invalid_argument. The name of `out` has 242 bytes at most: the hidden folder is called after it. A folder that
/// exists and has no checkpoint in it counts as new: the files in it stay. Tensors are split in the order given and
/// ordered inside each file as the reference implementation sorts them (but see `align_tensors`), so the same input
/// gives the same bytes.
///
/// All or nothing: files are filled in a hidden folder beside it, fsynced (if `durable`), and appear by one rename.
/// Space is allocated first. Memory is a few fixed buffers whatever the size of a tensor.
///
/// With `overwrite` an old checkpoint stays whole until the new one takes its place, so there must be space for both;
/// sources may lie in it, and views of it stay valid. A file is replaced by a rename, and the new one gets its
/// permissions. In a folder the old model goes (its index and the shards that it names, or its `model.safetensors`);
/// every other file stays. The folder is exchanged as a whole, so that others see the old model or the new at every
/// moment; folders in it are built again with hard links to their files. Where that cannot be (docs/saving.md: folders
/// of many entries or with mounts in them, the root of a mount, a file system without hard links or without
/// exchange), its files are replaced one by one: safemap sees the old or the new at every moment, and so do others
/// where the two models share no file name; else these may for a moment see files of both.
///
/// Extras are read while they are copied: one that changed since it was opened is file_changed. An extra without a
/// source, or whose name has a folder in it or is that of another file of the save, is invalid_argument.
///
/// Throws already_exists (where `overwrite` is not set, or would put a file in the place of a folder, or a folder in
/// that of a file; also where something that no save left has the hidden folder's name, `.NAME.safemap-tmp`),
/// path_not_found (no folder to put it in), several_models (several indexes in the folder that is replaced),
/// name_collision, bad_name (a NUL in it), invalid_argument (an alignment that is none, names or metadata that are not
/// UTF-8, options that contradict each other), unsupported_cast, shape_overflow, header_too_large, no_space,
/// permission_denied, busy (another process is saving to `out`), file_changed (somebody else has put something there
/// meanwhile, which stays), commit_list_damaged (a save that was interrupted there cannot be finished), cancelled, and
/// what reading throws. After any of these nothing is left of the new, and the old is as it was; but for an error in
/// the midst of replacing files one by one, which says that the new counts.
SAFEMAP_API SaveReport save(const std::filesystem::path& out, std::span<const LazyTensor> tensors,
                            const SaveOptions& options = {});
/// Saves a checkpoint, also one that select(), renamed() or below() made: its tensors; its metadata, where
/// `options.metadata` has no pair of the same key (but see `exact_metadata`); `__metadata__[other name] = stored name`
/// for tied tensors; and the structure document as `structure` says, in `__metadata__["safemap.structure"]`, of shards
/// in the index's metadata; one of more than 1 MiB in a U8 tensor `~structure`. Tensors that were not selected are
/// opaque objects in it. With a document or `checksums` also what a single `.pt` that it was read from can be known by:
/// `__metadata__["safemap.source"]`.
///
/// Throws what the other save() throws, structure_too_large if the document is to be kept in any case, and
/// name_collision if another name of a tied tensor is a key of the metadata that has a meaning: `format`, or one that
/// begins with `safemap.`.
SAFEMAP_API SaveReport save(const std::filesystem::path& out, const Checkpoint& checkpoint,
                            const SaveOptions& options = {});

/// Saves one file to a sink: in memory, or wherever the caller wants it. Layout, header and bytes are those of a save
/// to a path with `one_file`. The sink decides what stands there before and after: options that say this of a path
/// (`overwrite`, `resume`, `durable` = false, `extras`, `folders`) are invalid_argument. Throws what the sink throws,
/// and what the saves above throw before they copy tensors and while they do.
SAFEMAP_API SaveReport save(Sink& sink, std::span<const LazyTensor> tensors, const SaveOptions& options = {});
SAFEMAP_API SaveReport save(Sink& sink, const Checkpoint& checkpoint, const SaveOptions& options = {});

}  // namespace safemap::SAFEMAP_ABI
