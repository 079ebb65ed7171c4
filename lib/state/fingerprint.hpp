// What tells later whether a file that was converted has changed.
#pragma once

#include <safemap/source.hpp>

#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::state {

/// The key of `__metadata__` for the fingerprint of the file that tensors were converted from.
inline constexpr std::string_view source_key = "safemap.source";

/// XXH3-128, in hex, of a file's size (eight bytes, little-endian), its first 64 KiB, 64 blocks of 4 KiB that are
/// spread evenly, and its last MiB, where a zip has the checksums of all it holds; of a file that is no longer than
/// these together, of its size and all of it. Reads no more than that.
std::string fingerprint(const Source& source);

}  // namespace safemap::SAFEMAP_ABI::state
