// The digests that a safetensors file stores for its tensors, for callers that read all of them.
#pragma once

#include "base/faults.hpp"
#include "safetensors/digests.hpp"
#include "state/contents.hpp"

#include <safemap/open_options.hpp>
#include <safemap/source.hpp>

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::check {

/// The digest that a file stores for one of its tensors.
struct StoredDigest {
    std::string_view name;  ///< valid as long as its FileDigests
    Extent extent = {};     ///< extent in the file
    Digest digest = {};
};

/// The digests that one file stores.
struct FileDigests {
    const Source* source = nullptr;
    std::vector<StoredDigest> tensors = {};  ///< tensors that have a digest, by offset
    bool listed = false;                     ///< true if the file has a list
    bool of_all = false;                     ///< true if the list has all of the file's tensors
    std::vector<char> names = {};
};

/// Reads the header again and returns the digests of its list. Returns no digests in three cases: there is no list; the
/// list is invalid, which is reported as header_bad_metadata; or the header has faults, which were reported when it was
/// read first. Also reports header_bad_metadata if the list names a tensor that the file does not hold, or names a
/// tensor twice; the rest of the list is still used.
FileDigests read_file_digests(const Source& source, const OpenOptions& options, FaultSink& faults);

/// Compares the digest of the checkpoint, if there is one. Reports checksum_mismatch, with `path`. Reports
/// header_bad_metadata for a digest whose tensors or whose document are missing. Adds notes on what is not compared
/// although the checkpoint has digests. Of a checkpoint whose files hold parts of tensors, the digest is not compared:
/// WholeDigest does that.
void check_identity(state::Contents& contents, std::span<const FileDigests> files, const std::filesystem::path& path,
                    FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::check
