// The layout of a checkpoint: the place of every byte, known before the first byte is written.
#pragma once

#include "base/checksum.hpp"
#include "lazy/cast_counts.hpp"
#include "state/contents.hpp"
#include "state/quantization.hpp"

#include <safemap/lazy_tensor.hpp>
#include <safemap/save.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The place of a tensor in its file.
struct PlannedTensor {
    std::uint64_t offset = 0;  ///< offset of its first byte in the file
    std::uint32_t number = 0;  ///< index in the list of tensors that are written: see written_tensors()
    Dtype dtype = {};          ///< dtype in the file
};

/// A tensor of the caller that is written.
struct ChosenTensor {
    std::uint32_t number = 0;  ///< index in the caller's list
    Dtype dtype = {};          ///< dtype in the file
};

/// A file of a layout.
struct PlannedFile {
    std::string name;
    std::string head;                    ///< everything before the data; for an index, the whole file
    std::vector<PlannedTensor> tensors;  ///< in the order of their bytes, without gaps
    std::uint64_t size = 0;
    bool lists_digests = false;          ///< true if `head` has zeros in the places of the tensors' digests
    bool has_checkpoint_digest = false;  ///< true if `head` has zeros in the place of the checkpoint's digest
};

/// All files of a checkpoint, in the order in which they are written.
struct Layout {
    Layout();
    Layout(const Layout&);
    Layout(Layout&&) noexcept;
    Layout& operator=(const Layout&);
    Layout& operator=(Layout&&) noexcept;
    ~Layout();

    std::vector<PlannedFile> files;    ///< the index is last
    std::vector<ChosenTensor> chosen;  ///< in the caller's order
    std::uint64_t tensors = 0;
    std::uint64_t data_bytes = 0;         ///< bytes of the values as written
    std::uint64_t read_bytes = 0;         ///< bytes of the values as stored
    std::vector<SaveReport::Cast> casts;  ///< counts are filled in while writing
    std::vector<SkippedObject> skipped;
    std::uint64_t unaligned_tensors = 0;
    std::vector<std::string> notes;
    std::vector<std::string> resumed;   ///< names of files that an interrupted save had finished
    bool has_structure_tensor = false;  ///< true if a file has the structure document as a tensor
    /// If digests are wanted: the names that readers will take for other names of tensors, with the tensors' numbers.
    std::vector<std::pair<std::string, std::uint32_t>> aliases;

    // Only if tensors are cut for ranks.
    std::vector<LazyTensor> parts;       ///< the tensors that are written in place of the caller's
    std::vector<std::uint32_t> part_of;  ///< for each part: the number of the caller's tensor
    std::span<const LazyTensor> wholes;  ///< the caller's tensors
    std::vector<Digest> whole_digests;   ///< by the caller's numbers, once they are known
};

/// Returns the tensors that the files of a layout hold: the caller's `tensors`, or their parts.
inline std::span<const LazyTensor> written_tensors(std::span<const LazyTensor> tensors, const Layout& layout) {
    return layout.wholes.empty() ? tensors : std::span<const LazyTensor>(layout.parts);
}

/// Returns the counts of casts between two dtypes, which are added to `casts` if they are not there yet.
SaveReport::Cast& cast_of(std::vector<SaveReport::Cast>& casts, Dtype from, Dtype to);
inline void add_counts(SaveReport::Cast& cast, const CastCounts& counts) noexcept {
    cast.values += counts.values;
    cast.overflowed += counts.overflowed;
    cast.non_finite += counts.non_finite;
}

/// The note that is added if the files list the tensors in another order than the caller does.
inline constexpr std::string_view order_is_lost =
    "the order of the tensors is lost: files sort them by dtype and name; only a structure document keeps it "
    "(convert --structure keep)";

/// Returns the dtype that `tensor` is stored as, before any cast; for a product with scales, that of its numbers.
Dtype stored_dtype(const LazyTensor& tensor);
/// Returns the bytes of the value of `tensor` as stored, before any cast.
std::uint64_t stored_bytes(const LazyTensor& tensor);

using Metadata = std::map<std::string, std::string>;

/// Quantised tensors of a save.
struct QuantizedInput {
    state::QuantizedTensors found = {};  ///< indices in the tensors to write, and behind them in `unwritten`
    std::vector<LazyTensor> unwritten = {};
};

/// The tensors and metadata of a save. Refers to the caller's tensors, or to the checkpoint that owns them.
struct Input {
    std::span<const LazyTensor> tensors;
    Metadata metadata = {};
    std::span<const AliasGroup> ties =
        {};  ///< known ties; if a tensor is skipped, its pairs of the metadata are dropped
    std::shared_ptr<const std::vector<AliasGroup>> own_ties = {};  ///< owns `ties` if they are not the checkpoint's
    std::span<const StoragePlace> storages = {};                   ///< storages whose unreferenced bytes are counted
    std::vector<std::string> notes = {};                           ///< first notes of the report
    bool note_order = false;  ///< true to add a note if the files list the tensors in another order
    /// The quantised tensors among `tensors`, if they are known by other names, or by tensors that are not written.
    std::shared_ptr<const QuantizedInput> quantized = {};
    std::vector<SkippedObject> skipped = {};  ///< tensors that are left out before
    /// Numbers and scales that are read in place of the tensors that are made of them.
    std::vector<LazyTensor> factors = {};
    std::vector<SaveOptions::DtypeOf> stay = {};  ///< scales of numbers that stay quantised, and their dtypes
    std::optional<Extras> extras = {};            ///< set if other extras are copied than those of the options
    /// Names of tensors whose dtype safetensors does not have, and whose dtype the structure document names: see
    /// raw_dtype().
    std::unordered_set<std::string> as_raw = {};
};

/// Returns true if the structure document is one of the tensors.
bool has_structure_tensor(const Input& input);

/// Lays out the tensors in one file called `single_file`, in shards and an index, or in a file for each rank. Ignores
/// `options.metadata`. Throws name_collision, bad_name, unsupported_cast, shape_overflow, invalid_argument for text
/// that is not UTF-8, and what safetensors::write_header throws.
Layout lay_out(const Input& input, const SaveOptions& options, const std::optional<std::string>& single_file);

/// Fills the places in the head of a file of `layout`: the digests of its tensors, and the digest of the checkpoint,
/// which needs every tensor's digest. `digests` is in the order of `tensors`, which are written_tensors(). If they are
/// cut for ranks, the digest of the checkpoint needs `layout.whole_digests`.
void put_digests(PlannedFile& file, const Layout& layout, std::span<const LazyTensor> tensors,
                 std::span<const Digest> digests);

}  // namespace safemap::SAFEMAP_ABI::write
