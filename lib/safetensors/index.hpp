// Reads and writes `model.safetensors.index.json`. PyTorch's `pytorch_model.bin.index.json` has the same format.
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
        std::uint32_t shard = 0;  ///< index into `shards`
    };

    std::vector<std::pair<std::string, std::string>> metadata;  ///< string members of `metadata`, sorted
    std::vector<std::string> shards;                            ///< without duplicates, in the order of the weight_map
    std::vector<Place> weight_map;                              ///< in file order
    std::vector<std::uint32_t> repeated;     ///< indices into weight_map, one per further entry; the last entry counts
    std::vector<std::string> repeated_keys;  ///< duplicate keys, here or in `metadata`, once each; the last one counts
};

/// Returns true if this is JSON with a weight_map.
bool is_index(const Source& source);
/// Reads an index. Reports index_not_json, index_bad_field; shard_outside_folder for a shard name that is absolute or
/// has a `..`, a drive or a backslash.
Index read_index(const Source& source, FaultSink& faults);

using MetadataView = std::span<const std::pair<std::string, std::string>>;
/// Pairs of a tensor and its shard.
using WeightMapView = std::span<const std::pair<std::string_view, std::string_view>>;

/// Returns the index as huggingface_hub 2.x writes it: indentation of two spaces; `metadata` with total_size, then the
/// caller's entries in order; `weight_map` in the given order; non-ASCII characters as \uXXXX; no newline at the end.
std::string write_index(std::uint64_t total_size, MetadataView metadata, WeightMapView weight_map);

/// Returns the index as transformers 5.x writes it. Differences: every object is sorted by key, `metadata` has
/// total_parameters too, and there is a newline at the end. `metadata` must not have a key of the two totals.
std::string write_transformers_index(std::uint64_t total_size, std::uint64_t total_parameters, MetadataView metadata,
                                     WeightMapView weight_map);

}  // namespace safemap::SAFEMAP_ABI::safetensors
