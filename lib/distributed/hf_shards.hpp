// Hugging Face shards: safetensors files that hold the parts of the ranks, as torch's HuggingFaceStorageWriter writes
// them. docs/hf-shards.md describes the format.
#pragma once

#include "base/faults.hpp"
#include "state/contents.hpp"

#include <string>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// A file of shards. Its contents are those of the file alone: the parts, and the metadata that says where they belong.
struct HfFile {
    std::string name = {};  ///< in its folder
    state::Contents contents = {};
    bool sound = true;  ///< false if faults of the file were reported: tensors may be missing from `contents`
};

/// Joins the files to whole tensors, in the order in which they first appear, by rank. Metadata that all files agree on
/// is kept, and from the first file what safemap wrote there for all of them: the structure document, digests of the
/// whole. Does not read the structure document.
///
/// A part that the files of several ranks hold is taken from the lowest rank; the others are `replicas`. A rank without
/// a part has no file, so a missing number is a fault only if elements are missing too.
///
/// Reports, with the tensor and the file:
/// - field_missing for a file or a tensor without a place, header_bad_metadata
/// - world_mismatch if the names are those of two saves
/// - ranks_differ if two files state different dtypes, numbers of dimensions or shapes of the whole
/// - piece_mismatch if the place has another number of dimensions than the part
/// - piece_outside, pieces_overlap, not_covered, shape_overflow, as whole() does
/// - in place of not_covered, if the names have gaps: rank_missing, or shard_missing if only files of ranks are missing
state::Contents join_hf_shards(std::vector<HfFile> files, FaultSink& faults);

}  // namespace safemap::SAFEMAP_ABI::distributed
