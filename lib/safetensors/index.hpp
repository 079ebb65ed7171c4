// `model.safetensors.index.json`, both ways. PyTorch's `pytorch_model.bin.index.json` has the same form.
#pragma once

#include "base/faults.hpp"

#include <safemap/source.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

struct Index {
    std::optional<std::uint64_t> total_size;
    struct Place {
        std::string tensor;
        std::uint32_t shard = 0;  ///< a number in `shards`
    };

    std::vector<std::pair<std::string, std::string>> metadata;  ///< the string members of `metadata`, sorted
    std::vector<std::string> shards;      ///< each once, in the order in which the weight_map names them
    std::vector<Place> weight_map;        ///< in file order
    std::vector<std::uint32_t> repeated;  ///< numbers in weight_map, once for each further entry; the last one counts
    std::vector<std::string> repeated_keys;  ///< of the index and of its `metadata`, each once; the last one counts
};

/// Whether this is JSON with a weight_map.
bool is_index(const Source& source);
/// Reads an index. index_not_json, index_bad_field; shard_outside_folder for a shard name that is absolute, has a
/// `..` or a drive or backslash in it.
Index read_index(const Source& source, FaultSink& faults);

using MetadataView = std::span<const std::pair<std::string, std::string>>;
/// Tensors and their shards.
using WeightMapView = std::span<const std::pair<std::string_view, std::string_view>>;

/// The index as huggingface_hub 2.x writes it: two spaces, `metadata` (total_size, then the caller's in order),
/// `weight_map` in the order given, non-ASCII as \uXXXX, no newline at the end.
std::string write_index(std::uint64_t total_size, MetadataView metadata, WeightMapView weight_map);

/// The index as transformers 5.x writes it: the same, but every object sorted by key, with total_parameters, and with
/// a newline at the end. No key of `metadata` may be one of the totals.
std::string write_transformers_index(std::uint64_t total_size, std::uint64_t total_parameters, MetadataView metadata,
                                     WeightMapView weight_map);

}  // namespace safemap::SAFEMAP_ABI::safetensors
