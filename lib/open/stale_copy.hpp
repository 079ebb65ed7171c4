// Notes on a `.pt` and the safetensors file that it was converted to, side by side: a note says if one is stale, and
// neither is preferred.
#pragma once

#include "open/readers.hpp"

#include <filesystem>

namespace safemap::SAFEMAP_ABI::open {

/// Adds a note if `path`, which has been read to `contents`, and the file beside it with the other ending do not have
/// the same fingerprint, or no longer have it. Ignores faults of the other file.
void note_stale_copy(const std::filesystem::path& path, const OpenOptions& options, Contents& contents);

}  // namespace safemap::SAFEMAP_ABI::open
