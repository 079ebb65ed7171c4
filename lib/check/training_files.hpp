// Checks what only training runs have: files of all ranks and files that hold thousands of zips, of which only some are
// open, or in memory, at once; and weights that several ranks hold whole, and that should be equal.
#pragma once

#include "base/watch.hpp"
#include "open/read.hpp"
#include "state/contents.hpp"
#include "state/stored_places.hpp"

#include <safemap/verify.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

/// Returns the size of all files together. Files that are missing have none.
std::uint64_t size_of(const open::RunFiles& run);

/// Reads every byte of every file, and compares the checksums of all records. The records of a few files at a time are
/// in memory. Faults go to `report`, in the order of the files; one that the readers have reported is not added again.
void check_rank_files(const open::RunFiles& run, unsigned threads, Watch& watch, VerifyReport& report);

/// Returns the size of all files together.
std::uint64_t size_of(const StoredItems& items);

/// Reads every byte of every file, and compares the checksums of all records in all items; those of compressed items in
/// their streams. Adds faults to `report`, in the order of the files, with the item's name as the tensor; a fault that
/// the readers have reported is not added again. Adds a note on the bytes that no checksum covers.
void check_items(const StoredItems& items, unsigned threads, Watch& watch, VerifyReport& report);

/// Returns a note for each pair of replicas that differs, and how many more there are after the first thousand. Reads
/// both tensors a block at a time, up to their first difference. A tensor that cannot be read is not compared: its file
/// has a fault. Throws cancelled.
std::vector<std::string> compare_replicas(const state::Contents& contents, Watch& watch);

}  // namespace safemap::SAFEMAP_ABI::check
