// Expands globs as a shell does.
#pragma once

#include <safemap/api.hpp>

#include <filesystem>
#include <vector>

namespace safemap::SAFEMAP_ABI {

/// Returns true if a path has one of the characters `*`, `?` and `[`, and nothing exists under it.
bool is_glob(const std::filesystem::path& path);
/// Returns the files and folders that match a glob, sorted by name. A `*` matches no `/`, and no `.` that begins a
/// name; `.*` does not match `.` and `..`. Skips folders that cannot be listed. Throws out_of_memory.
std::vector<std::filesystem::path> paths_matching(const std::filesystem::path& glob);

}  // namespace safemap::SAFEMAP_ABI
