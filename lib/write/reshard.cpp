// Cuts tensors for ranks. Tested by tests/write/reshard_test.cpp.
#include "write/reshard.hpp"

#include <safemap/advanced/dtypes.hpp>

#include "check/hasher.hpp"
#include "lazy/stored_tensor.hpp"
#include "safetensors/sharding_info.hpp"
#include "tensor/raw_dtype.hpp"

#include <limits>
#include <optional>
#include <utility>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// A tensor that is cut: slices of `length`, except the last.
struct Cutting {
    std::uint64_t size = 0;    // size of the dimension; 0 if the tensor is not cut
    std::uint64_t length = 0;  // size of a slice

    std::uint64_t start(std::uint32_t rank) const noexcept {
        // rank * length does not overflow where it is below the size.
        return length != 0 && rank > (size - 1) / length ? size : rank * length;
    }
};

Cutting cutting_of(const LazyTensor& tensor, std::uint32_t ranks, std::uint32_t dimension) {
    const Shape& shape = tensor.shape();
    if (dimension >= shape.size() || tensor.element_count() == 0 || !whole_bytes(tensor.stored()->dtype())) return {};
    const std::uint64_t size = shape[dimension];
    // Slices count in 64 bits with a sign.
    if (size > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) return {};
    return {size, size / ranks + (size % ranks == 0 ? 0 : 1)};
}

LazyTensor slice_of(const LazyTensor& tensor, std::uint32_t dimension, std::uint64_t start, std::uint64_t stop) {
    std::vector<Slice> slices(dimension + std::size_t{1});
    slices[dimension] = {.start = static_cast<std::int64_t>(start), .stop = static_cast<std::int64_t>(stop)};
    return tensor.slice(slices);
}

}  // namespace

RankParts cut_for_ranks(std::span<const LazyTensor> tensors, std::span<const ChosenTensor> chosen, std::uint32_t ranks,
                        std::uint32_t dimension, const std::function<bool(const LazyTensor&)>& stays_whole) {
    std::vector<Cutting> cuttings;
    for (const ChosenTensor& each : chosen) {
        const LazyTensor& tensor = tensors[each.number];
        const bool whole = stays_whole(tensor) || !whole_bytes(each.dtype) || !in_safetensors(each.dtype);
        cuttings.push_back(whole ? Cutting() : cutting_of(tensor, ranks, dimension));
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
            const std::uint64_t start = cuttings[i].start(rank);
            const std::uint64_t stop = cuttings[i].start(rank + 1);
            if (cuttings[i].size == 0 || stop - start == cuttings[i].size) {
                if (rank == 0) add(tensor, i, 0);
            } else if (start < stop) {
                add(slice_of(tensor, dimension, start, stop), i, start);
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

std::uint64_t bytes_to_hash(const Layout& layout) {
    if (layout.wholes.empty()) return 0;
    const auto only = only_parts(layout);
    std::uint64_t bytes = 0;
    for (const ChosenTensor& each : layout.chosen)
        if (!only[each.number])
            bytes += byte_size(each.dtype, layout.wholes[each.number].element_count()).value_or(0);  // it was planned
    return bytes;
}

std::vector<Digest> digests_of_wholes(const Layout& layout, std::span<const Digest> digests, unsigned threads,
                                      Watch& watch) {
    const auto only = only_parts(layout);
    std::vector<Digest> wholes(layout.wholes.size());
    std::vector<LazyTensor> cut;
    for (const ChosenTensor& each : layout.chosen) {
        const LazyTensor& tensor = layout.wholes[each.number];
        if (only[each.number]) wholes[each.number] = digests[*only[each.number]];
        else cut.push_back(tensor.dtype() == each.dtype ? tensor : tensor.cast(each.dtype));
    }
    std::vector<const LazyTensor*> read;
    for (const LazyTensor& tensor : cut) read.push_back(&tensor);
    check::Hasher<Xxh3> hasher(read, threads, watch);
    hasher.run();
    std::size_t next = 0;
    for (const ChosenTensor& each : layout.chosen)
        if (!only[each.number]) wholes[each.number] = hasher.of(next++);
    return wholes;
}

}  // namespace safemap::SAFEMAP_ABI::write
