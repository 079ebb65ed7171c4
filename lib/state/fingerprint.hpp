// Computes the fingerprint of a file, which shows later whether a converted file has changed.
#pragma once

#include <safemap/source.hpp>

#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::state {

/// The key of `__metadata__` for the fingerprint of the file that tensors were converted from.
inline constexpr std::string_view source_key = "safemap.source";

/// Returns XXH3-128, in hex, of the file's size (eight bytes, little-endian), its first 64 KiB, 64 evenly spread blocks
/// of 4 KiB, and its last MiB. In a zip, the last MiB holds the checksums of all records. If the file is not longer
/// than these parts together, hashes its size and all its bytes. Reads nothing else.
std::string fingerprint(const Source& source);

}  // namespace safemap::SAFEMAP_ABI::state
