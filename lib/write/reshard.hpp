// Cuts tensors for ranks, as Hugging Face shards: docs/hf-shards.md. Knows tensors and slices of them, and no format of
// a source.
#pragma once

#include "base/checksum.hpp"
#include "write/file_layout.hpp"

#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

/// The largest number of ranks: names of files have five digits for it.
inline constexpr std::uint32_t most_ranks = 99'999;

/// Tensors cut for ranks.
struct RankParts {
    std::vector<LazyTensor> tensors = {};  ///< slices under the names of their tensors, rank by rank
    std::vector<std::uint32_t> chosen =
        {};  ///< for each slice: the index in `chosen` of the tensor that it is cut from
    std::vector<std::uint64_t> starts = {};  ///< for each slice: its first index along the dimension that is cut
    std::vector<std::size_t> ends = {};      ///< for each rank: the end of its slices
};

/// Cuts each tensor along `dimension` into as many slices as there are ranks, as torch.chunk does: all of the same
/// length, except the last; the last ranks may get none. Slices without elements are left out. The first rank gets
/// whole: tensors without that dimension or without elements, tensors of sub-byte dtypes and of dtypes that only a
/// structure document names, and those for which `stays_whole` returns true.
RankParts cut_for_ranks(std::span<const LazyTensor> tensors, std::span<const ChosenTensor> chosen, std::uint32_t ranks,
                        std::uint32_t dimension, const std::function<bool(const LazyTensor&)>& stays_whole);

/// Returns DCP_SHARDING_INFO for the slices with these numbers. `tensors` and `chosen` are those that were cut.
std::string sharding_info_of(const RankParts& parts, std::span<const std::uint32_t> numbers,
                             std::span<const LazyTensor> tensors, std::span<const ChosenTensor> chosen,
                             std::uint32_t dimension);

/// Returns one of the caller's tensors as it is written, before it is cut.
LazyTensor whole_value(const Layout& layout, const ChosenTensor& chosen);
/// Returns the tensors in several parts, as indices into `layout.chosen`: those of one of several processes, which get
/// about the same number of bytes. Their digests are not computed while parts are written, so they are read once more.
std::vector<std::uint32_t> wholes_to_hash(const Layout& layout, unsigned rank, unsigned ranks);
/// Returns the number of bytes of all of them.
std::uint64_t bytes_to_hash(const Layout& layout);
/// Returns the digests of whole tensors, by the caller's numbers. `digests` are those of the parts; `hashed` has those
/// of the tensors that wholes_to_hash() gives, by the caller's numbers.
std::vector<Digest> digests_of_wholes(const Layout& layout, std::span<const Digest> digests,
                                      std::span<const std::pair<std::uint32_t, Digest>> hashed);

}  // namespace safemap::SAFEMAP_ABI::write
