// Saves in a child process that a signal ends at a chosen system call.
#pragma once

#include <safemap/save.hpp>

#include <filesystem>

/// Saves the checkpoint `in` to `out` in another process, which dies at its nth system call. Returns false if the save
/// finished before that call.
bool killed_at(int nth, const std::filesystem::path& in, const std::filesystem::path& out,
               const safemap::SaveOptions& options);
