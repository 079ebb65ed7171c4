// The metadata by which torch.distributed.checkpoint (DCP) says that a file holds parts of tensors: the share of one
// rank. docs/hf-shards.md describes it.
#pragma once

#include <safemap/shape.hpp>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::safetensors {

/// Key in the metadata of each file: the place of each of its tensors, as JSON:
/// {"stored name":{"saved_offsets":[4,0]},...}.
inline constexpr std::string_view sharding_info_key = "DCP_SHARDING_INFO";
/// Key beside it, with the value below.
inline constexpr std::string_view sharding_version_key = "DCP_VERSION";
inline constexpr std::string_view sharding_version = "1.0";
/// Returns true if `key` is one of these two keys.
inline bool is_sharding_key(std::string_view key) noexcept {
    return key == sharding_info_key || key == sharding_version_key;
}

/// The place of a tensor of a file in the whole tensor that it is a part of.
struct ShardPlace {
    std::string stored = {};                 ///< its name in the file
    std::string name = {};                   ///< the name of the whole tensor
    Shape offsets = {};                      ///< index of its first element in the whole tensor
    std::optional<Shape> global_shape = {};  ///< shape of the whole tensor, if it is given

    bool operator==(const ShardPlace&) const = default;
};

/// Reads the text of the key. Calls on_place for each place of a tensor that the file has, in the order of the text,
/// which may repeat a stored name. Entries of other names are skipped, and so are unknown members.
/// Throws, with the stored name as tensor:
///
/// - header_bad_metadata if `text` is not an object in JSON, or a member is of another kind than expected
/// - field_missing for a place without `saved_offsets`
/// - piece_outside for a negative offset
///
/// Accepts what newer writers add: `global_shape`; `logical_fqn`, the name of the whole tensor if the name in the file
/// is another; `storage_key`, the name in the file if the entry has the name of the whole tensor; and a list of places
/// in place of one.
void read_sharding_info(std::string_view text, const std::function<bool(std::string_view stored)>& is_stored,
                        const std::function<void(const ShardPlace&)>& on_place);

/// Returns the text of the key. torch reads only `saved_offsets`. `global_shape` shows that a file of a last rank is
/// missing.
std::string write_sharding_info(std::span<const ShardPlace> places);

}  // namespace safemap::SAFEMAP_ABI::safetensors
