// The names that trainers and libraries give to the files and folders of a checkpoint: one table of patterns, and the
// endings and words that are in names. The table is in file_names.cpp.
#pragma once

#include <safemap/api.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::names {

using FileNames = std::vector<std::string>;

bool has(const FileNames& names, std::string_view name);
/// Returns true if the text is one digit or more, and nothing else.
bool is_digits(std::string_view text);
/// Returns the number with zeros before it, if it has fewer digits.
std::string padded(std::uint64_t number, std::size_t digits);

/// The kind of a name.
enum class NameKind : std::uint8_t {
    // DeepSpeed.
    zero_model,             ///< model states for all ranks of data parallelism
    zero_ranked_model,      ///< model states of one rank, of stage 3
    zero_optimizer,         ///< the partition of one rank
    zero_expert,            ///< 16-bit weights of an expert
    zero_expert_optimizer,  ///< optimizer states of experts
    zero_layer,             ///< a layer of a pipeline, of one rank of tensor parallelism
    zero_shared_layer,      ///< a layer of a pipeline without tensor parallelism
    zero_similar,           ///< other names of which a folder is taken for a tag
    // torch.distributed.checkpoint.
    dcp_unfinished,  ///< metadata that a save which was interrupted leaves
    dcp_metadata,
    dcp_rank_metadata,
    dcp_items,
    dcp_similar,
    hf_shard,  ///< safetensors with DCP information
    // One file for each rank.
    sized_rank,  ///< with the number of ranks
    rank,
    item_of_rank,  ///< torch_checkpointing has one for each item and rank; without the ending
    // Folders of Megatron.
    megatron_rank,
    iteration,
    // Models.
    part,   ///< the stem of a part of the model, as Llama's files are cut
    shard,  ///< one of several numbered shards; without variant and ending, in lower case
};

/// A number in a name.
struct NumberInName {
    std::string_view field = {};
    std::uint64_t value = 0;  ///< 2^64 - 1 if it does not fit
    std::size_t at = 0;       ///< place of its first digit
    std::size_t digits = 0;
    bool overflows = false;
};

/// A name that fits a row of the table. Refers to the name.
struct KnownName {
    NameKind kind = {};
    std::array<NumberInName, 3> numbers = {};  ///< in the order of the pattern; those after the last have no field
    std::string_view text = {};                ///< the text in place of the first '*'

    /// Returns true if no number has more than nine digits.
    bool is_short() const;
};

/// Returns what a name is by the first row that fits, of the rows of some kinds.
std::optional<KnownName> known_name(std::string_view file, std::initializer_list<NameKind> kinds);
inline bool is_kind(std::string_view file, NameKind kind) { return known_name(file, {kind}).has_value(); }

/// The numbers in the name of a file that one rank, or several, have written.
struct RankedName {
    NameKind kind = NameKind::zero_model;
    std::uint64_t rank = 0;        ///< the rank; for DeepSpeed, that of data parallelism
    std::uint64_t model_rank = 0;  ///< rank of tensor or pipeline parallelism
    std::uint64_t layer = 0;
    std::uint64_t expert = 0;
    std::uint64_t shard = 0;  ///< for a Hugging Face shard, the number of its rank, from 1
    std::uint64_t file = 0;   ///< number among the files of the rank: from 0 in DCP, from 1 for Hugging Face shards
    std::uint64_t files = 0;  ///< for a Hugging Face shard, the number of files that a rank has at most
    std::optional<std::uint64_t> world_size = {};  ///< set if the name gives it
    std::string prefix = {};                       ///< for DeepSpeed: "bf16_", "fp16_" or nothing
    std::string set = {};                          ///< for rank_file(): glob for all files of the set
};

/// Returns the name that files of this kind and these numbers have.
std::string spelled(const RankedName& name);

/// Numbers above this one are not those of a run of DeepSpeed.
inline constexpr std::uint64_t largest_zero_number = 1 << 24;
/// Parses the name of a file of DeepSpeed, whatever its numbers.
std::optional<RankedName> any_zero_name(std::string_view file);
/// Returns the largest of the numbers that such a name can have.
std::uint64_t largest_number(const RankedName& zero_name);
/// Parses the name of a file of DeepSpeed. Returns nothing for numbers above largest_zero_number.
std::optional<RankedName> zero_name(std::string_view file);
/// Parses the name of a file that one rank of DCP wrote. Returns nothing for numbers of more than 64 bits.
std::optional<RankedName> dcp_name(std::string_view file);
/// Parses the name of a file of Hugging Face shards.
std::optional<RankedName> shard_file(std::string_view file);
/// Parses the name of a rank's file. Returns nothing for hidden files, and for numbers of more than nine digits.
std::optional<RankedName> rank_file(std::string_view file);
/// Returns a glob of files with a number in place of its last '*', and zeros before it up to so many digits.
std::string file_in_set(std::string set, std::uint64_t number, std::size_t digits = 1);
/// Returns true for states of random number generators, schedulers and more, which trainers write beside the model:
/// "extra_state_world_size_4_rank_0.pt". They are not a model, and not the state of its optimizer.
bool is_training_state(const RankedName& rank_file);

/// Returns true for the metadata of DCP.
bool is_dcp_metadata(std::string_view file);
/// Returns true for a name such as "model_rank_0.pt": one file per item and rank.
bool is_item_of_rank(std::string_view file);

// Endings of files of weights.
inline constexpr std::string_view safetensors_endings[] = {".safetensors", ".sft"};
inline constexpr std::string_view torch_endings[] = {".pt", ".pth", ".bin", ".ckpt"};

template <class Endings> bool ends_in(std::string_view name, const Endings& endings) {
    return std::any_of(std::begin(endings), std::end(endings), [name](auto ending) { return name.ends_with(ending); });
}
/// Returns the ending of weights that a name has; an empty text for other names.
std::string_view ending_of_weights(std::string_view name);
inline bool ends_as_safetensors(std::string_view name) { return ends_in(name, safetensors_endings); }
/// Returns true if a file of that name may hold weights. Hidden files are not weights: macOS leaves
/// "._model.safetensors" beside a model.
inline bool is_weights(std::string_view name) { return !name.starts_with('.') && !ending_of_weights(name).empty(); }
/// Returns true if a file of that name may hold weights of another framework.
bool is_foreign_weights(std::string_view name);
/// Returns true if the ending of a file name says that the file is weights or code. Among names that are otherwise
/// taken as extras, only names that begin with "tokenizer", "LICENSE" or "NOTICE" can have such an ending.
bool is_weights_or_code(std::string_view name);
/// Returns true for a file that trainers leave beside a model.
bool is_companion(std::string_view name);

/// A model and the state of its optimizer: names of folders, or globs of sets of rank files.
struct ModelAndOptimizer {
    std::string model;
    std::string optimizer;
};

/// Returns which of two names is the model, and which the state of its optimizer; nothing if the names are not such a
/// pair, or if there are more or fewer than two. The names of a pair differ in one word only: "model", "weights",
/// "pytorch_model" or "pytorch_model_fsdp" in that of the model, "optim" or "optimizer" in the other one. A "_0" after
/// the word can be missing.
///
///     model_world_size_8_rank_*.pt      optim_world_size_8_rank_*.pt    verl, SkyRL
///     pytorch_model_fsdp_0_rank*.bin    optimizer_0_rank*.bin           accelerate with use_dcp=False
///     pytorch_model_fsdp_0              optimizer_0                     accelerate, transformers: folders of DCP
///     weights                           optimizer                       NeMo-RL
///     model                             optim                           NeMo Automodel, OLMo
std::optional<ModelAndOptimizer> model_and_optimizer(const FileNames& names);

/// Returns true for the name of a folder, or of a file without its ending, that trainers give to a model, or to the
/// state of an optimizer, and that says nothing else: "pytorch_model_fsdp_0", "optimizer_0".
bool names_model(std::string_view name);
bool names_optimizer(std::string_view name);

/// Returns true for a name that trainers give to one of the saves of a run, by its number: "checkpoint-100", "step-7",
/// "epoch_3", "global_step500", "iter_0000100", "ep0-ba100", "epoch=0-step=3.ckpt".
bool is_numbered_save(std::string_view name);
/// Returns the newest of the saves of a run by the numbers in their names, "checkpoint-1000" and not "checkpoint-200".
/// Names that are spelled in another way than most, such as "best", do not count. Returns an empty text if no name is
/// the newest.
std::string newest_save(const FileNames& names);

/// The name of the folder beside a model that holds the state of its optimizer, as safetensors.
inline constexpr const char* optimizer_folder = "optimizer";

}  // namespace safemap::SAFEMAP_ABI::names
