// What makes two checkpoints the same: a digest of all names, dtypes, shapes and values.
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

/// What one name stands for.
struct NamedDigest {
    std::string_view name;
    Dtype dtype = {};
    const Shape* shape = nullptr;
    std::span<const std::byte> digest = {};  ///< lasts as long as it is asked for
};

/// As CheckpointDigests::checkpoint says, in any order: with XXH3-128, and with SHA-256.
Digest digest_of_all(std::vector<NamedDigest> tensors);
Sha256Digest sha256_of_all(std::vector<NamedDigest> tensors);

/// Of tied tensors that were dropped, save_model of the safetensors package leaves metadata[dropped] = kept. Calls
/// alias(dropped, number) for each key that gives another name to a tensor; `number_of` knows the tensors' own.
void for_each_alias(std::span<const std::pair<std::string, std::string>> metadata,
                    const std::function<std::optional<std::uint32_t>(std::string_view)>& number_of,
                    const std::function<void(const std::string& dropped, std::uint32_t number)>& alias);

}  // namespace safemap::SAFEMAP_ABI::safetensors
