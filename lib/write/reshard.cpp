// Cuts tensors for ranks. Tested by tests/write/reshard_test.cpp.
#include "write/reshard.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "base/chunks.hpp"
#include "lazy/narrow.hpp"
#include "lazy/stored_tensor.hpp"
#include "safetensors/sharding_info.hpp"
#include "tensor/raw_dtype.hpp"

#include <limits>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// Returns the size of the dimension that is cut; 0 if the tensor is not cut.
std::uint64_t size_to_cut(const LazyTensor& tensor, std::uint32_t dimension) {
    const Shape& shape = tensor.shape();
    if (dimension >= shape.size() || tensor.element_count() == 0 || !whole_bytes(tensor.stored()->dtype())) return 0;
    const std::uint64_t size = shape[dimension];
    // Slices count in 64 bits with a sign.
    return size > std::uint64_t{std::numeric_limits<std::int64_t>::max()} ? 0 : size;
}

}  // namespace

RankParts cut_for_ranks(std::span<const LazyTensor> tensors, std::span<const ChosenTensor> chosen, std::uint32_t ranks,
                        std::uint32_t dimension, const std::function<bool(const LazyTensor&)>& stays_whole) {
    std::vector<std::uint64_t> sizes;
    for (const ChosenTensor& each : chosen) {
        const LazyTensor& tensor = tensors[each.number];
        const bool whole = stays_whole(tensor) || !whole_bytes(each.dtype) || !in_safetensors(each.dtype);
        sizes.push_back(whole ? 0 : size_to_cut(tensor, dimension));
    }
    RankParts parts;
    const auto add = [&](LazyTensor tensor, std::uint32_t from, std::uint64_t start) {
        parts.tensors.push_back(std::move(tensor));
        parts.chosen.push_back(from);
        parts.starts.push_back(start);
    };
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        for (std::uint32_t i = 0; i < chosen.size(); ++i) {
            const LazyTensor& tensor = tensors[chosen[i].number];
            const std::uint64_t start = chunk_start(sizes[i], ranks, rank);
            const std::uint64_t stop = chunk_start(sizes[i], ranks, rank + std::uint64_t{1});
            if (stop - start == sizes[i]) {
                if (rank == 0) add(tensor, i, 0);
            } else if (start < stop) {
                add(narrow(tensor, dimension, start, stop - start), i, start);
            }
        }
        parts.ends.push_back(parts.tensors.size());
    }
    return parts;
}

std::string sharding_info_of(const RankParts& parts, std::span<const std::uint32_t> numbers,
                             std::span<const LazyTensor> tensors, std::span<const ChosenTensor> chosen,
                             std::uint32_t dimension) {
    std::vector<safetensors::ShardPlace> places;
    for (const std::uint32_t i : numbers) {
        const ChosenTensor& from = chosen[parts.chosen[i]];
        const LazyTensor& whole = tensors[from.number];
        Shape shape = raw_shape(from.dtype, whole.shape());
        Shape offsets(shape.size(), 0);
        if (parts.starts[i] > 0) offsets[dimension] = parts.starts[i];
        places.push_back({.stored = whole.name(),
                          .name = whole.name(),
                          .offsets = std::move(offsets),
                          .global_shape = std::move(shape)});
    }
    return safetensors::write_sharding_info(places);
}

namespace {

/// Returns for each of the caller's tensors the number of its only part; nothing for tensors in several parts.
std::vector<std::optional<std::uint32_t>> only_parts(const Layout& layout) {
    std::vector<std::optional<std::uint32_t>> only(layout.wholes.size());
    std::vector<std::uint32_t> counts(layout.wholes.size());
    for (std::uint32_t i = 0; i < layout.parts.size(); ++i) {
        const std::uint32_t whole = layout.part_of[i];
        only[whole] = ++counts[whole] == 1 ? std::optional(i) : std::nullopt;
    }
    return only;
}

}  // namespace

LazyTensor whole_value(const Layout& layout, const ChosenTensor& chosen) {
    const LazyTensor& tensor = layout.wholes[chosen.number];
    return tensor.dtype() == chosen.dtype ? tensor : tensor.cast(chosen.dtype);
}

std::uint64_t bytes_to_hash(const Layout& layout) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t i : wholes_to_hash(layout, 0, 1)) bytes += whole_value(layout, layout.chosen[i]).nbytes();
    return bytes;
}

std::vector<std::uint32_t> wholes_to_hash(const Layout& layout, unsigned rank, unsigned ranks) {
    if (layout.wholes.empty()) return {};
    const auto only = only_parts(layout);
    std::vector<std::uint32_t> cut;
    std::uint64_t total = 0;
    for (std::uint32_t i = 0; i < layout.chosen.size(); ++i) {
        if (only[layout.chosen[i].number]) continue;
        cut.push_back(i);
        total += whole_value(layout, layout.chosen[i]).nbytes();  // at most data_bytes
    }
    // A tensor belongs to the share in which it begins.
    std::vector<std::uint32_t> mine;
    std::uint64_t before = 0;
    for (const std::uint32_t i : cut) {
        if (before / (total / ranks + 1) == rank) mine.push_back(i);
        before += whole_value(layout, layout.chosen[i]).nbytes();
    }
    return mine;
}

std::vector<Digest> digests_of_wholes(const Layout& layout, std::span<const Digest> digests,
                                      std::span<const std::pair<std::uint32_t, Digest>> hashed) {
    const auto only = only_parts(layout);
    std::vector<Digest> wholes(layout.wholes.size());
    for (const ChosenTensor& each : layout.chosen)
        if (only[each.number]) wholes[each.number] = digests[*only[each.number]];
    for (const auto& [number, digest] : hashed) wholes.at(number) = digest;
    return wholes;
}

}  // namespace safemap::SAFEMAP_ABI::write
