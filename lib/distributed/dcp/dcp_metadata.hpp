// Reads the `.metadata` of torch.distributed.checkpoint (DCP): tensors with their chunks, objects, the place of each in
// the files, and its path in the state dict. Compact tables: a checkpoint may have millions of chunks.
#pragma once

#include "pickle/pickle.hpp"
#include "torch/named_globals.hpp"

#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>
#include <safemap/source.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

/// The place of a chunk or an object: a part of a file.
struct DcpItem {
    // Values of `file` other than numbers.
    static constexpr std::uint32_t not_stored = std::numeric_limits<std::uint32_t>::max();
    static constexpr std::uint32_t not_needed = not_stored - 1;  ///< a chunk without elements, beside another

    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::uint32_t file = not_stored;  ///< number in DcpMetadata::files
    std::uint32_t transform = 0;      ///< number in DcpMetadata::transforms
    std::uint32_t entry = 0;          ///< number in DcpMetadata::entries

    Extent extent() const noexcept { return {offset, length}; }
};

/// A tensor or an object of the checkpoint.
struct DcpEntry {
    std::string name = {};
    bool tensor = false;
    Dtype dtype = Dtype::f32;      ///< only for a tensor
    Shape shape = {};              ///< only for a tensor
    std::uint32_t first_item = 0;  ///< in DcpMetadata::items: of its chunks, or the one of an object
    std::uint32_t item_count = 0;  ///< chunks of a tensor; 1 for an object
    std::size_t first_place = 0;   ///< in DcpMetadata::places
    std::size_t first_step = 0;    ///< in DcpMetadata::steps
    std::uint32_t step_count = 0;  ///< 0: the path is the name
};

/// A step of a path in the state dict: a key of a dictionary, or a place in a list.
struct DcpStep {
    static constexpr std::uint32_t no_text = std::numeric_limits<std::uint32_t>::max();

    std::uint32_t text = no_text;  ///< number in DcpMetadata::texts; no_text: a place in a list
    std::int64_t place = 0;

    friend bool operator==(const DcpStep&, const DcpStep&) = default;
};

/// An item that holds the same as another: ranks that save without each other write what they all have.
struct DcpReplica {
    std::uint32_t item;  ///< number of the item that is read
    DcpItem other;
};

struct DcpMetadata {
    std::vector<DcpEntry> entries = {};        ///< in the order of the metadata
    std::vector<DcpItem> items = {};           ///< items of one entry follow each other
    std::vector<std::uint64_t> places = {};    ///< offsets, then sizes, of chunk after chunk
    std::vector<std::string> files = {};       ///< paths below the folder
    std::vector<std::string> transforms = {};  ///< names of extensions; the first is empty: none
    std::vector<DcpStep> steps = {};
    std::vector<std::string> texts = {};
    std::vector<DcpReplica> replicas = {};
    std::string version = {};
    std::vector<std::string> notes = {};

    /// Returns the offsets of the k-th chunk of a tensor, one for each dimension.
    std::span<const std::uint64_t> start(const DcpEntry& entry, std::size_t k) const {
        const std::size_t rank = entry.shape.size();
        return {places.data() + entry.first_place + 2 * rank * k, rank};
    }
    /// Returns the sizes of the k-th chunk.
    std::span<const std::uint64_t> size(const DcpEntry& entry, std::size_t k) const {
        const std::size_t rank = entry.shape.size();
        return {places.data() + entry.first_place + 2 * rank * k + rank, rank};
    }
    std::span<const DcpStep> path(const DcpEntry& entry) const {
        return {steps.data() + entry.first_step, entry.step_count};
    }
};

/// Reads a file of metadata: a pickle of torch 1.13 or later, or of Megatron. Nothing is executed. Every chunk of the
/// result is inside its tensor and has an item, and so has every object; their files are not looked at. The pickle is
/// freed on return. Throws, with the path of the source, and with the name of the tensor or object if there is one:
///
/// - not_a_checkpoint if the pickle holds something else
/// - unsafe_call if it names a function that runs code; unknown_global if `globals` is strict
/// - field_missing for a field that is missing or of another type, or a path that contradicts another
/// - bad_tensor, shape_overflow, unknown_dtype for a tensor that cannot be
/// - piece_mismatch for a chunk with another number of dimensions, piece_outside for one that reaches outside
/// - piece_missing for a chunk or object without an item, or with one that begins before its file or is beyond 64 bits
/// - shard_outside_folder for a relative_path that is absolute or has `..`
/// - the pickle_* faults; pickle_too_large also if containers in many places hold too many chunks for the pickle's size
///
/// `files` is the number of files of metadata: the memory that a pickle of any size may take is for all of them
/// together.
DcpMetadata read_dcp_metadata(const Source& source, torch::NamedGlobals& globals, std::size_t files = 1);

/// Returns the metadata of all ranks as one. `files` are the names of their files, for messages. A chunk or object that
/// several ranks have is taken from the first; the others are replicas. Throws ranks_differ if two ranks contradict
/// each other.
DcpMetadata joined(std::vector<DcpMetadata> ranks, std::span<const std::string> files);

}  // namespace safemap::SAFEMAP_ABI::distributed
