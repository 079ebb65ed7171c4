// OpenOptions: how strictly checkpoints are checked, and how files are read. Also Format, the list of formats.
#pragma once

#include <safemap/api.hpp>
#include <safemap/progress.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// How strictly safetensors headers are checked.
enum class Policy : std::uint8_t {
    /// Accepts and rejects exactly the files that the reference implementation (safetensors 0.8) accepts and rejects.
    /// Forms that the written specification does not allow are listed in notes().
    compatible,
    /// Also rejects those forms: header_not_canonical, duplicate_name (also for an index that names a tensor twice),
    /// bad_name.
    strict,
    /// As `compatible`, but also accepts bytes after the last tensor, and notes them.
    lenient
};

/// How LazyTensor::view() reaches the bytes of a file. If a file is not mapped, view() throws no_view (except with
/// `private_copy`), and load() reads.
enum class Access : std::uint8_t {
    /// Maps files on local disks only: if a network server goes away, touching a mapped view would kill the process.
    automatic,
    /// Maps all files.
    mapped,
    /// Never maps.
    copied,
    /// Makes views writable(), for changing weights in place. The file never changes.
    ///
    /// - All views of one open, and of all copies of its checkpoint, share one private copy of each file: a mapping
    ///   that copies a page when it is written to, or memory for a file that is not mapped. It is freed with the last
    ///   of them. Another open has its own copy.
    /// - load(), read(), save() and uploads read the file, without the changes to views.
    /// - Files that `automatic` maps are mapped here too; only pages that are written to become memory of this process.
    /// - For any other file, the first view of a tensor reads its bytes into memory, one view at a time, and does not
    ///   depend on the file afterwards. Tensors without a view take no memory.
    /// - A Source of the caller has no private copy: its own map() decides.
    private_copy
};

/// The formats that can be opened.
enum class Format : std::uint8_t {
    safetensors,  ///< a safetensors file, or shards
    torch,        ///< a file that PyTorch wrote, or shards: .pt, .pth, .bin, .ckpt
    zero,         ///< a folder that DeepSpeed wrote (ZeRO), also a universal one
    dcp,          ///< a folder of torch.distributed.checkpoint (DCP), or safetensors shards with DCP information
    fsdp          ///< a file for each rank: DTensor, ShardedTensor, flat parameters
};

/// The weights of a DeepSpeed checkpoint that open() gives.
enum class Weights : std::uint8_t {
    automatic,  ///< the fp32 masters; of stage 0, whose masters have no names, the weights of the module
    fp32,       ///< the fp32 masters; those of stage 0 get the names `fp32/GROUP/NUMBER`
    module      ///< the 16-bit weights that the engine computes with; no file of stage 3 has them
};

/// Options of Checkpoint::open().
///
/// Example:
///     safemap::OpenOptions options = {.policy = safemap::Policy::strict, .strict_globals = true};
///     auto model = safemap::Checkpoint::open(path, options);
///     for (const std::string& note : model.notes()) std::cerr << note << '\n';
struct OpenOptions {
    // Options that affect behaviour.
    Policy policy = Policy::compatible;
    Access access = Access::automatic;
    /// Maximum length of a safetensors header, in bytes. The default is the limit of the reference implementation. At
    /// most 4,294,967,295: a larger number counts as that. Reading a header takes up to eight times its length in
    /// memory.
    std::uint64_t max_header_bytes = 100'000'000;
    /// If true, a torch file whose pickle names an unknown class or function anywhere throws unknown_global. If false,
    /// the objects that it would make are opaque and listed in skipped(), and calls that would run code in notes().
    bool strict_globals = false;
    /// If true, tensor names that OLMo wrote, which are pickles in base64, are decoded to the paths that they contain.
    /// If false, the names are not changed.
    bool olmo_names = true;
    /// The weights to give, if the path is a folder of DeepSpeed. Has no effect on other checkpoints. Weights::module
    /// throws invalid_argument for stage 3, whose files do not have them.
    Weights weights = Weights::automatic;
    /// If true, a folder of DeepSpeed gives what DeepSpeed's own script `zero_to_fp32` gives: frozen weights and
    /// buffers with DeepSpeed's dtypes and shapes, without what the script leaves out. Throws invalid_argument for a
    /// folder that the script refuses, and together with Weights::module. Has no effect on other checkpoints.
    bool deepspeed_compat = false;
    /// Path of the manifest of flat parameters, for files of ranks that do not name their parameters: docs/fsdp.md. If
    /// it is empty, `manifest.json` beside the files is read. Has no effect on other checkpoints.
    std::string manifest = {};
    /// If true, one file of a set of ranks that is opened by itself gives the local parts that it holds, as any torch
    /// file. If false, it gives whole tensors if it holds them, and otherwise throws rank_missing.
    bool as_parts = false;
    /// The part of a nested state dict that is given. Its tensors have the names that they have in it.
    ///
    /// | `root` | the tensors, for a file with `{"state_dict": {"model.w": w}, "epoch": 3}` |
    /// | --- | --- |
    /// | not set | if exactly one entry of the root holds all tensors, and is a dict or a module: `model.w` |
    /// | "" | everything, under the path of each tensor: `state_dict/model.w` |
    /// | "state_dict" | the same as Checkpoint::below("state_dict") |
    ///
    /// The entry that holds all tensors is taken as often as there is one: `{"state_dict": {"model": {...}}}` gives the
    /// names below `state_dict/model`. tree() still has the whole tree. The state of an optimizer keeps its paths: an
    /// entry whose name begins with "optim", or that has the entries `state` and `param_groups`. Folders of DeepSpeed
    /// have the names of the model already. Throws invalid_argument for a path that leads to nothing.
    std::optional<std::string> root = std::nullopt;
    /// If true, and several parts hold tensors: takes the model by the names that trainers give to it, such as
    /// `state_dict` and `model` (docs/format.md has the table), and notes what it took and what it left. Throws
    /// invalid_argument if no part has such a name. A checkpoint without several parts is given whole. `root` wins.
    bool root_auto = false;
    /// If true, no part is taken, and tensors have the names that are stored: in safetensors those of the file, in a
    /// `.pt` their paths. edit() changes these names. `root` wins.
    bool stored_names = false;
    /// If true, averages of weights (exponential moving averages, EMA) take the places of the weights that they shadow,
    /// and have no other names; a note counts them. docs/format.md has the forms. Throws tensor_not_found if there are
    /// no averages, and model_mismatch if one shadows no weight, or a weight of another shape.
    bool ema = false;

    // Options that affect performance.
    /// Threads for the headers of many files, at most 256. A stop request cancels between two files. No progress is
    /// reported, because no tensor is read.
    Work work = {};
};

}  // namespace safemap::SAFEMAP_ABI
