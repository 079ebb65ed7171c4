// Memory limits of cgroups: what a container or a batch system leaves of the memory of the machine.
#pragma once

#include <safemap/api.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace safemap::SAFEMAP_ABI::drivers {

/// Returns how many bytes this process can allocate before its cgroup, or one above it, is at its memory limit. Pages
/// of files count as free, because the kernel drops them first. Returns nothing if no cgroup has a limit, and ignores
/// what it cannot read. `root` takes the place of "/" in tests.
std::optional<std::uint64_t> room_in_cgroups(const std::filesystem::path& root = "/");

}  // namespace safemap::SAFEMAP_ABI::drivers
