// The file names of whole models: one file, numbered shards, or an index of shards.
#pragma once

#include <safemap/error.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::names {

/// A file name that says what the file is of a model. Names of transformers 5, diffusers 0.36, PEFT 0.18, open_clip 3
/// and mistral-common: "model.safetensors", "diffusion_pytorch_model.fp16-00001-of-00002.safetensors",
/// "model.safetensors.index.fp16.json".
struct ModelName {
    enum class Kind : std::uint8_t { index, file, shard };

    Kind kind = Kind::file;
    std::string stem;          ///< "model", "diffusion_pytorch_model"
    std::string variant = {};  ///< "fp16"; empty for the plain model
    std::string ending;        ///< ".safetensors", ".bin": that of the shards for an index
    std::uint64_t number = 0;  ///< for a shard, its number
    std::uint64_t shards = 0;  ///< for a shard, the number of shards: at least 1
    std::size_t digits = 0;    ///< for a shard, how many digits that number has: 5 in "-of-00003"
    std::size_t width = 0;     ///< for a shard, how many digits its own number has
    std::string set = {};      ///< for a shard, glob for all shards of the model: "model-*-of-00003.safetensors"
    std::string of = {};       ///< for a shard, the text between its number and the number of shards: "-of-"
};

/// Parses the name of a model's file. A single file has one of the known stems. An index of safetensors or `.bin`
/// shards, and a shard ("STEM-00001-of-00003.safetensors"), have any stem. A shard may have '_' in place of '-', and
/// "OF". Returns nothing for other names, for hidden files, and for shards with DCP information.
std::optional<ModelName> model_name(std::string_view file);

/// Returns true for the usual names of a model of Hugging Face: "model.safetensors", "pytorch_model.bin",
/// "adapter_model" with any ending, and the shards and indexes of these.
bool is_usual_model(std::string_view file);

/// The numbered shards of one model: files whose names differ in the number alone. Files with numbers beyond the set
/// are not of it.
struct ShardSet {
    ModelName name;                       ///< the name of the first file
    std::vector<std::string> files = {};  ///< in the order of their numbers
    std::vector<std::string> lacks = {};  ///< names of the first shards that are missing, at most eight
    std::uint64_t missing = 0;            ///< number of shards that are missing
    const std::string& text() const { return name.set; }
    bool complete() const { return missing == 0; }
};

/// Returns the sets among these names, sorted by name. Shards are numbered from 1, or from 0.
std::vector<ShardSet> shard_sets(std::span<const std::string> names);

/// Returns the set of one shard by itself. Returns nothing for a name of another kind, and for the only shard of a set.
std::optional<ShardSet> set_of_shard(const std::string& file);

/// Returns the names among `all` that are shards of the same sets as some of `named`, and are not named themselves.
std::vector<std::string> shards_beside(std::span<const std::string> named, std::span<const std::string> all);

/// Returns the error shard_missing for a set that is not complete.
Error lacks_shards(const ShardSet& set);

/// The models of a folder that a whole file, a complete set of shards or an index stands for.
struct Heads {
    /// The files of the preferred one: an index, a file, or the shards of a set. Empty without a model.
    std::vector<std::string> files = {};
    ModelName::Kind kind = ModelName::Kind::file;
    /// Other models that are as good, by their first files. The folder is ambiguous if there are any.
    std::vector<std::string> equals = {};
};

/// Finds the model of a folder by the names of its files. A plain model is preferred to a variant; `model` and
/// `pytorch_model` to other stems, and these to adapters; safetensors to pickles; an index to a file, and that to
/// shards without an index.
Heads find_heads(std::span<const std::string> names);

/// Returns the stem under which a model from this file is saved: "adapter_model" for "adapter_model.bin". Returns
/// "model" for a file without a known stem, and for stems of which the libraries have another safetensors name.
std::string stem_of_saved(std::string_view model_file);

}  // namespace safemap::SAFEMAP_ABI::names
