// Which tensors go into which file: huggingface_hub's rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace safemap::write {

/// A tensor, as far as splitting is concerned.
struct Sized {
    std::uint64_t size = 0;     ///< bytes; of tensors that share a storage, the first one's counts
    std::uint64_t storage = 0;  ///< tensors with the same number share a storage; 0: one of its own
};

struct Split {
    std::vector<std::vector<std::uint32_t>> shards;  ///< numbers of tensors, in each shard's order
    std::uint64_t total_size = 0;                    ///< each storage once
};

/// Throws shape_overflow where it does not fit in 64 bits. Tensors that repeat their elements come to such sizes.
std::uint64_t sum_of_sizes(std::uint64_t sum, std::uint64_t size);

/// Fills shards in the order given, greedily, as huggingface_hub 2.4 does: a tensor larger than `max_shard_size` gets
/// a shard that is numbered before the one being filled, which stays open; tensors that share a storage follow the
/// first of them, after all others of its shard. Linear. Throws shape_overflow.
Split split(std::span<const Sized> tensors, std::uint64_t max_shard_size);

/// "model.safetensors" for the only shard, else "model-00001-of-00002.safetensors".
std::string shard_name(std::size_t shard, std::size_t shards);
inline constexpr const char* single_name = "model.safetensors";
inline constexpr const char* index_name = "model.safetensors.index.json";

}  // namespace safemap::write
