// Writes zstd streams without libzstd: frames of blocks that are stored raw, or one byte repeated (RFC 8878).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace forge {

/// Returns one frame. Blocks have at most `block` bytes, which is at most 128 KiB; those of one repeated byte are
/// stored as such.
std::string zstd_frame(std::string_view data, std::size_t block = 64U << 10);

/// Returns a frame that decoders skip.
std::string zstd_skippable(std::string_view data);

}  // namespace forge
