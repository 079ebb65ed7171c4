// Reads the bytes of files once, in parallel, and compares them with the checksums that the files store.
#pragma once

#include "base/watch.hpp"
#include "check/stored_digests.hpp"
#include "state/contents.hpp"

#include <safemap/verify.hpp>

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

/// A range of bytes with one checksum, or without a checksum.
struct Stretch {
    const Source* source = nullptr;
    Extent extent = {};
    const StoredChecksum* record = nullptr;
    const StoredDigest* tensor = nullptr;
    bool inflated = false;              ///< true for a deflated record, whose source compares the checksum itself
    bool counted = true;                ///< true if its bytes count in the progress
    const std::string* name = nullptr;  ///< name of the tensor whose bytes these are; null if it is not known

    /// Returns true if one worker reads the bytes from the first to the last: for records, because a CRC-32 is computed
    /// in order.
    bool in_order() const noexcept { return record != nullptr || inflated; }
};

/// Returns stretches that cover every byte of every source once: records and tensors with checksums, and the bytes
/// between them. Refers to the contents and to the digests.
std::vector<Stretch> stretches_of(const state::Contents& contents, const std::vector<FileDigests>& files);

/// Returns stretches that cover every byte of a range of a source once: `checked`, which are stretches of that source,
/// and the bytes between them.
std::vector<Stretch> stretches_in(const Source& source, Extent range, std::vector<Stretch> checked);

/// Reads all stretches. Adds the faults, in the order of the stretches, and the number of bytes that were compared with
/// checksums to `report`. Throws errors that are not about the data, and cancelled.
void read_stretches(const std::vector<Stretch>& stretches, unsigned threads, Watch& watch, VerifyReport& report);

}  // namespace safemap::SAFEMAP_ABI::check
