// The container that a tar archive is: which member stands where. Reads the headers.
#pragma once

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <functional>
#include <map>
#include <string>

namespace safemap::SAFEMAP_ABI {

/// The members by name; of two with one name, the last.
using TarMembers = std::map<std::string, Extent, std::less<>>;
/// Throws unknown_format where a member is no plain file, or there are more than anybody writes; file_truncated.
TarMembers tar_members(const Source& source);

}  // namespace safemap::SAFEMAP_ABI
