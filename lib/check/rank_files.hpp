// Checks the files of all ranks of a training run: there may be thousands, so only a few are open at once.
#pragma once

#include "base/watch.hpp"
#include "open/readers.hpp"

#include <safemap/verify.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI::check {

/// Returns the size of all files together. Files that are missing have none.
std::uint64_t size_of(const open::RunFiles& run);

/// Reads every byte of every file, and compares the checksums of all records. The records of a few files at a time are
/// in memory. Faults go to `report`, in the order of the files; one that the readers have reported is not added again.
void read_rank_files(const open::RunFiles& run, unsigned threads, Watch& watch, VerifyReport& report);

}  // namespace safemap::SAFEMAP_ABI::check
