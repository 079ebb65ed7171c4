// Finds the members of a tar archive. Reads the headers only.
#pragma once

#include <safemap/bytes.hpp>
#include <safemap/source.hpp>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The places of the members by name. If two have the same name, that of the last one.
using TarMembers = std::map<std::string, Extent, std::less<>>;
/// Reads the headers. Throws file_truncated, and unknown_format if a header is invalid, a member is not a plain file,
/// or there are too many members.
TarMembers tar_members(const Source& source);

/// Returns true if 512 bytes begin with the checksum of a tar header, as Python's tarfile reads it. torch.load checks
/// nothing else before it takes a file for a tar.
bool begins_tar(std::string_view head);

/// A place at which Python may find the data of a member.
struct TarPlace {
    Extent data = {};  ///< up to the end of the file at most
    std::string name = {};
    char type = '0';  ///< from the header
};
/// Returns the places after all blocks with such a checksum: those in the first `searched` bytes, and those to which
/// the sizes in the headers lead. Checks nothing else.
std::vector<TarPlace> tar_places(const Source& source, std::uint64_t searched);

}  // namespace safemap::SAFEMAP_ABI
