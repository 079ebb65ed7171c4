// Identifies a checkpoint by a digest of all names, dtypes, shapes and values.
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
