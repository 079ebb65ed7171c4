// Names of the file systems that are not local to this machine.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

/// Returns the name of the network, cluster or FUSE file system with this magic number (statfs, f_type); empty for any
/// other file system.
std::string_view remote_file_system(std::uint32_t magic) noexcept;

constexpr std::uint32_t overlay_magic = 0x794c'7630;

}  // namespace safemap::SAFEMAP_ABI::io
