// Memory of the process in huge pages.
#pragma once

#include <safemap/api.hpp>
#include <safemap/bytes.hpp>

#include <cstddef>
#include <cstdint>

namespace safemap::SAFEMAP_ABI::drivers {

/// The size of a huge page on x86-64, and on most other machines.
constexpr std::uint64_t huge_page = 2_MiB;

/// Maps memory that ::munmap() frees, untouched and zero. It begins at a multiple of a huge page if it has one, so no
/// part of it is left to small pages. Returns null if there is no memory.
std::byte* map_memory(std::uint64_t size) noexcept;

}  // namespace safemap::SAFEMAP_ABI::drivers
