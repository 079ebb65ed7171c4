// Splits tensors into files: by huggingface_hub's rule, or by one of two others.
#pragma once

#include <safemap/save.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The properties of a tensor that splitting needs.
struct Sized {
    std::uint64_t size = 0;     ///< bytes; for tensors that share a storage, only the first one's count
    std::uint64_t storage = 0;  ///< tensors with the same number share a storage; 0: a storage of its own
    std::uint64_t layer = 0;    ///< tensors with the same number are in one layer; 0: not in a layer
    std::uint64_t header = 0;   ///< bytes that it takes in the header
};

/// The limits of a shard: of the bytes of its tensors, and of the bytes that they take in its header.
struct ShardLimits {
    ShardLimits(std::uint64_t max_size, std::uint64_t max_header = UINT64_MAX) : size(max_size), header(max_header) {}

    std::uint64_t size;
    std::uint64_t header;
};

/// A layer that does not fit into a shard, and gets a shard of its own.
struct LargeLayer {
    std::uint32_t tensor = 0;  ///< its first tensor
    std::uint32_t shard = 0;
    std::uint64_t size = 0;
};

/// The shards of a checkpoint.
struct Split {
    std::vector<std::vector<std::uint32_t>> shards;  ///< tensor numbers, in the order of each shard
    std::uint64_t total_size = 0;                    ///< bytes, with each storage counted once
    std::vector<LargeLayer> large_layers;            ///< only layers of more than one tensor
};

/// Returns the sum. Throws shape_overflow if it does not fit in 64 bits. Tensors that repeat their elements can reach
/// such sizes.
std::uint64_t sum_of_sizes(std::uint64_t sum, std::uint64_t size);

/// Puts every tensor into one shard. Throws shape_overflow. Takes n log n time. A shard within the limit of its size
/// also stays within the limit of its header, unless one tensor, storage or layer alone is beyond it.
/// - greedy: fills shards in the given order, as huggingface_hub 2.4 does. A tensor beyond the limits gets a shard that
///   is numbered before the shard being filled, which stays open. Tensors that share a storage follow the first of
///   them, after all other tensors of its shard.
/// - balanced: makes as many shards as greedy, which is the minimum for a contiguous split. The boundaries make the
///   largest shard as small as possible, and the others nearly equal. Neither greedy nor balanced uses `layer`.
/// - by_prefix: greedy with layers in the place of tensors. A layer has the position of its first tensor. Layers that
///   share a storage count as one. Inside a shard, tensors keep the given order.
Split split(std::span<const Sized> tensors, ShardLimits limits, ShardStrategy strategy = ShardStrategy::greedy);

/// Returns the layer of a tensor: its name up to and including the first part between dots or slashes that is a number.
/// Returns an empty string if there is no such part. Examples: "model.layers.12" for "model.layers.12.mlp.w", and ""
/// for "lm_head.weight".
std::string_view layer_of(std::string_view name);

/// Returns "model.safetensors" for the only shard, else "model-00001-of-00002.safetensors", for the stem "model".
std::string shard_name(const std::string& stem, std::size_t shard, std::size_t shards);
/// Returns "model.safetensors.index.json" for the stem "model".
std::string index_name(const std::string& stem);

}  // namespace safemap::SAFEMAP_ABI::write
