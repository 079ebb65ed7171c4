// Where every byte of a checkpoint goes, known before the first is written.
#pragma once

#include "lazy/cast_counts.hpp"
#include "state/contents.hpp"

#include <safemap/save.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// A tensor in its file.
struct PlannedTensor {
    std::uint64_t offset = 0;  ///< of its first byte in the file
    std::uint32_t number = 0;  ///< in the caller's list
    Dtype dtype = {};          ///< written as
};

struct PlannedFile {
    std::string name;
    std::string head;                    ///< everything before the data; of an index, everything
    std::vector<PlannedTensor> tensors;  ///< in the order of their bytes, which leave no gaps
    std::uint64_t size = 0;
    bool lists_digests = false;  ///< `head` has zeros where digests of the tensors go
    bool has_identity = false;   ///< and where the digest of the checkpoint goes
};

struct Layout {
    std::vector<PlannedFile> files;  ///< the index last
    std::uint64_t tensors = 0;
    std::uint64_t data_bytes = 0;         ///< of values as they are written
    std::uint64_t read_bytes = 0;         ///< of values as they are stored
    std::vector<SaveReport::Cast> casts;  ///< without counts
    std::vector<SkippedObject> skipped;
    std::uint64_t unaligned_tensors = 0;
    std::vector<std::string> notes;
    std::vector<std::string> resumed;   ///< names of files that were there already
    bool has_structure_tensor = false;  ///< which is no tensor of the checkpoint
    /// Where digests are wanted: names that readers will take for other names of tensors, with the tensors' numbers.
    std::vector<std::pair<std::string, std::uint32_t>> aliases;
};

inline void add_counts(SaveReport::Cast& cast, const CastCounts& counts) noexcept {
    cast.values += counts.values;
    cast.overflowed += counts.overflowed;
    cast.non_finite += counts.non_finite;
}

/// The note on tensors that the files have in another order than they are given in.
inline constexpr std::string_view order_is_lost =
    "the order of the tensors is lost: files sort them by dtype and name; only a structure document keeps it "
    "(convert --structure keep)";

/// Bytes of the value of `tensor` as it is stored, before any cast.
std::uint64_t stored_bytes(const LazyTensor& tensor);

using Metadata = std::map<std::string, std::string>;

/// What is written. Refers to the caller's tensors, or to the checkpoint that they are of.
struct Input {
    std::span<const LazyTensor> tensors;
    Metadata metadata = {};
    std::span<const AliasGroup> ties =
        {};  ///< known ties: their pairs of the metadata go with a tensor that is skipped
    std::span<const StoragePlace> storages = {};  ///< whose unreferenced bytes are counted
    std::vector<std::string> notes = {};          ///< the first ones of the report
    bool note_order = false;                      ///< a note says if the files have the tensors in another order
    /// Names of tensors whose dtypes the structure document names, because safetensors does not: see raw_dtype().
    std::unordered_set<std::string> as_raw = {};
};

/// Lays out the tensors in one file called `single_file`, or in shards and an index. `options.metadata` is not asked.
/// Throws name_collision, unsupported_cast, and what safetensors::write_header refuses.
Layout lay_out(const Input& input, const SaveOptions& options, const std::optional<std::string>& single_file);

}  // namespace safemap::SAFEMAP_ABI::write
