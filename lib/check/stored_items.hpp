// Checks files that hold thousands of zips: the records of some at a time are in memory.
#pragma once

#include "base/watch.hpp"
#include "state/stored_places.hpp"

#include <safemap/verify.hpp>

#include <cstdint>

namespace safemap::SAFEMAP_ABI::check {

/// Returns the size of all files together.
std::uint64_t size_of(const StoredItems& items);

/// Reads every byte of every file, and compares the checksums of all records in all items; those of compressed items in
/// their streams. Adds faults to `report`, in the order of the files, with the item's name as the tensor; a fault that
/// the readers have reported is not added again. Adds a note on the bytes that no checksum covers.
void read_items(const StoredItems& items, unsigned threads, Watch& watch, VerifyReport& report);

}  // namespace safemap::SAFEMAP_ABI::check
