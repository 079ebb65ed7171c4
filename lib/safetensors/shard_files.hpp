// Finds the files of a folder that are the shards of one checkpoint, by their content: for names that do not tell.
#pragma once

#include "base/folder.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::safetensors {

/// Returns the files that say of themselves that they hold parts of tensors (DCP_SHARDING_INFO), if two of them hold
/// parts of one tensor. Returns nothing otherwise: then each of them may be a model. Reads the headers of those that
/// end in ".safetensors" and are not hidden, and passes by files that cannot be read. `files` are names in `folder`.
std::vector<std::string> shard_files(const Folder& folder, std::vector<std::string> files,
                                     std::uint64_t max_header_bytes);

}  // namespace safemap::SAFEMAP_ABI::safetensors
