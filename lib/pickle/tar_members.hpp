// Finds the members of a tar archive. Reads the headers only.
#pragma once

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <functional>
#include <map>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// The places of the members by name. If two have the same name, that of the last one.
using TarMembers = std::map<std::string, Extent, std::less<>>;
/// Reads the headers. Throws file_truncated, and unknown_format if a header is invalid, a member is not a plain file,
/// or there are too many members.
TarMembers tar_members(const Source& source);

}  // namespace safemap::SAFEMAP_ABI
