// What a file of safetensors says its tensors' digests are, for who reads them all.
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

struct StoredDigest {
    std::string_view name;  ///< lasts as long as its FileDigests
    Extent extent = {};     ///< in the file
    Digest digest = {};
};

struct FileDigests {
    const Source* source = nullptr;
    std::vector<StoredDigest> tensors = {};  ///< that have one, by offset
    bool listed = false;                     ///< whether the file has a list
    bool of_all = false;                     ///< whether the list has all of the file's tensors
    std::vector<char> names = {};
};

/// Reads the header once more. None where there is no list, where it is none (header_bad_metadata), and where the
/// header has faults, which were told when it was read first. A list that names what the file does not hold, or a
/// tensor twice, is header_bad_metadata too; what else it says counts.
FileDigests read_file_digests(const Source& source, const OpenOptions& options, FaultSink& faults);

/// Compares the digest of the whole, where there is one. checksum_mismatch, with `path`. A digest whose tensors or
/// whose document are not there is header_bad_metadata. A note says what is not compared, though the checkpoint has
/// digests.
void check_identity(state::Contents& contents, std::span<const FileDigests> files, const std::filesystem::path& path,
                    FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::check
