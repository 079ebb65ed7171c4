// Which file systems are not this machine's own.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <string_view>

namespace safemap::SAFEMAP_ABI::io {

/// The name of the network, cluster or FUSE file system with that magic number (statfs, f_type); empty for all others.
std::string_view remote_file_system(std::uint32_t magic) noexcept;

constexpr std::uint32_t overlay_magic = 0x794c'7630;

}  // namespace safemap::SAFEMAP_ABI::io
