// A `.pt` and the safetensors that it was converted to, side by side: which is stale is told, and neither preferred.
#pragma once

#include "checkpoint/contents.hpp"

#include <filesystem>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::checkpoint {

/// The key of `__metadata__` for the fingerprint of the file that tensors were converted from.
inline constexpr std::string_view source_key = "safemap.source";

/// XXH3-128, in hex, of a file's size (eight bytes, little-endian), its first 64 KiB, 64 blocks of 4 KiB that are
/// spread evenly, and its last MiB, where a zip has the checksums of all it holds; of a file that is no longer than
/// these together, of its size and all of it. Reads no more than that.
std::string fingerprint(const Source& source);

/// Notes where `path`, which has been read to `contents`, and the file beside it with the other ending are not, or no
/// longer, the same by the fingerprint. What is wrong with the other file is nobody's concern here.
void note_twin(const std::filesystem::path& path, Contents& contents);

}  // namespace safemap::SAFEMAP_ABI::checkpoint
