// Which tensors go into which file: huggingface_hub's rule, and two others.
#pragma once

#include <safemap/save.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// A tensor, as far as splitting is concerned.
struct Sized {
    std::uint64_t size = 0;     ///< bytes; of tensors that share a storage, the first one's counts
    std::uint64_t storage = 0;  ///< tensors with the same number share a storage; 0: one of its own
    std::uint64_t layer = 0;    ///< tensors with the same number are of one layer; 0: of none
};

/// A layer that does not fit into a shard, and is one whole.
struct LargeLayer {
    std::uint32_t tensor = 0;  ///< the first of it
    std::uint32_t shard = 0;
    std::uint64_t size = 0;
};

struct Split {
    std::vector<std::vector<std::uint32_t>> shards;  ///< numbers of tensors, in each shard's order
    std::uint64_t total_size = 0;                    ///< each storage once
    std::vector<LargeLayer> large_layers;            ///< of more than one tensor
};

/// Throws shape_overflow where it does not fit in 64 bits. Tensors that repeat their elements come to such sizes.
std::uint64_t sum_of_sizes(std::uint64_t sum, std::uint64_t size);

/// Puts every tensor into one shard. Throws shape_overflow. n log n.
/// - greedy: fills shards in the order given, as huggingface_hub 2.4 does. A tensor larger than `max_shard_size` gets a
///   shard that is numbered before the one being filled, which stays open; tensors that share a storage follow the
///   first of them, after all others of its shard.
/// - balanced: as many shards as greedy, which no contiguous split undercuts; but their ends are where the largest is
///   as small as it can be, and the others come near to equal sizes. `layer` is not looked at by either.
/// - by_prefix: greedy with layers in the place of tensors. A layer stands where its first tensor does; layers that
/// share
///   a storage are one. Inside a shard tensors keep the order given.
Split split(std::span<const Sized> tensors, std::uint64_t max_shard_size,
            ShardStrategy strategy = ShardStrategy::greedy);

/// The layer of a tensor: its name up to and with the first part between dots or slashes that is a number. Empty where
/// there is none: "model.layers.12" of "model.layers.12.mlp.w", nothing of "lm_head.weight".
std::string_view layer_of(std::string_view name);

/// "model.safetensors" for the only shard, else "model-00001-of-00002.safetensors".
std::string shard_name(std::size_t shard, std::size_t shards);
inline constexpr const char* single_name = "model.safetensors";
inline constexpr const char* index_name = "model.safetensors.index.json";

}  // namespace safemap::SAFEMAP_ABI::write
