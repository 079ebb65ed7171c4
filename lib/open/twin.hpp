// A `.pt` and the safetensors that it was converted to, side by side: which is stale is told, and neither preferred.
#pragma once

#include "open/readers.hpp"

#include <filesystem>

namespace safemap::SAFEMAP_ABI::open {

/// Notes where `path`, which has been read to `contents`, and the file beside it with the other ending are not, or no
/// longer, the same by the fingerprint. What is wrong with the other file is nobody's concern here.
void note_twin(const std::filesystem::path& path, Contents& contents);

}  // namespace safemap::SAFEMAP_ABI::open
