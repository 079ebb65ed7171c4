// The digests that safemap stores in files that it writes, which other readers see as metadata: of tensors, and of a
// whole checkpoint with all names, dtypes, shapes and values.
#pragma once

#include "base/checksum.hpp"
#include "base/sha256.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// Key in the metadata of each file: XXH3-128 of the bytes of its tensors, {"name":"32 hex digits",...}, in the order
/// of the data.
inline constexpr std::string_view digests_key = "safemap.xxh3_128";
/// Key in the metadata of a single file, or of an index: the digest of the checkpoint, 32 hex digits.
inline constexpr std::string_view checkpoint_digest_key = "safemap.checkpoint_xxh3_128";
/// Key beside the structure document, whether the document is in the metadata or in a tensor: the digest of its text,
/// 32 hex digits.
inline constexpr std::string_view structure_digest_key = "safemap.structure_xxh3_128";
/// Returns true if `key` is one of the three keys above, and not metadata of another program.
inline bool is_digest_key(std::string_view key) noexcept {
    return key == digests_key || key == checkpoint_digest_key || key == structure_digest_key;
}

/// Returns the list of digests as text. Its size depends only on the names.
std::string write_digests(std::span<const std::pair<std::string_view, Digest>> tensors);
/// Calls on_tensor(name, digest) for each entry of the list, in order. Throws header_bad_metadata if `text` is not such
/// a list.
void read_digests(std::string_view text, const std::function<void(std::string_view, const Digest&)>& on_tensor);

/// Overwrites the value of a metadata key in a header or index that safemap wrote. The old value must be a string of
/// the same length.
void put_metadata(std::string& head, std::string_view key, std::string_view value);
/// Overwrites a list of digests with one of the same tensors. Does not build the list as one text, which needs as much
/// memory as all names.
void put_digests(std::string& head, std::span<const std::pair<std::string_view, Digest>> tensors);
/// Returns the value of a metadata key in such a header or index. Throws header_bad_metadata if the key is missing.
std::string metadata_in(std::string_view head, std::string_view key);

/// A name with dtype, shape and digest of its tensor.
struct NamedDigest {
    std::string_view name;
    Dtype dtype = {};
    const Shape* shape = nullptr;
    std::span<const std::byte> digest = {};  ///< valid while it is in use
};

/// Returns the digest defined by CheckpointDigests::checkpoint, for tensors in any order: XXH3-128, or SHA-256.
Digest digest_of_all(std::vector<NamedDigest> tensors);
Sha256Digest sha256_of_all(std::vector<NamedDigest> tensors);

/// Finds the names of tied tensors that save_model() of the safetensors package dropped: it leaves metadata[dropped] =
/// kept. Calls alias(dropped, number) for each key that is another name of a tensor; `number_of` finds tensors by their
/// own names.
void for_each_alias(std::span<const std::pair<std::string, std::string>> metadata,
                    const std::function<std::optional<std::uint32_t>(std::string_view)>& number_of,
                    const std::function<void(const std::string& dropped, std::uint32_t number)>& alias);

}  // namespace safemap::SAFEMAP_ABI::safetensors
