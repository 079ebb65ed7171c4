// The digests that safemap leaves in what it writes, where other readers see metadata.
#pragma once

#include "base/checksum.hpp"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace safemap::SAFEMAP_ABI::safetensors {

/// In each file's metadata: XXH3-128 of its tensors' bytes, {"name":"32 hex digits",...}, in the order of the data.
inline constexpr std::string_view digests_key = "safemap.xxh3_128";
/// In the metadata of a single file, or of an index: the digest of the checkpoint, 32 hex digits.
inline constexpr std::string_view checkpoint_digest_key = "safemap.checkpoint_xxh3_128";
/// Beside the structure document, whether that is in the metadata or in a tensor: the digest of its text, 32 hex
/// digits.
inline constexpr std::string_view structure_digest_key = "safemap.structure_xxh3_128";
/// None of these is anybody else's metadata.
inline bool is_digest_key(std::string_view key) noexcept {
    return key == digests_key || key == checkpoint_digest_key || key == structure_digest_key;
}

/// The list, as text. Its size depends on the names alone.
std::string write_digests(std::span<const std::pair<std::string_view, Digest>> tensors);
/// Calls on_tensor(name, digest) for each of the list, in its order. Throws header_bad_metadata where `text` is none.
void read_digests(std::string_view text, const std::function<void(std::string_view, const Digest&)>& on_tensor);

/// Writes `value` over that of a metadata key in a header, or in an index, that we wrote: a string of the same length
/// there.
void put_metadata(std::string& head, std::string_view key, std::string_view value);
/// The same of a list over one of the same tensors, without making it first: it takes as much as all names.
void put_digests(std::string& head, std::span<const std::pair<std::string_view, Digest>> tensors);
/// The value of a metadata key in such a header. Throws header_bad_metadata where there is none.
std::string metadata_in(std::string_view head, std::string_view key);

}  // namespace safemap::SAFEMAP_ABI::safetensors
