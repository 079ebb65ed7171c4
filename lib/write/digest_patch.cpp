// Computes the checkpoint's digest and puts digests into headers.
#include "write/digest_patch.hpp"

#include "safetensors/checkpoint_digest.hpp"
#include "safetensors/digests.hpp"
#include "state/structure.hpp"

#include <string_view>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::write {

namespace {

/// Returns the digest of the checkpoint: over every name that a reader will see, with the dtype, shape and digest of
/// its tensor. `tensors` and `digests` are by the caller's numbers.
Digest digest_of(const Layout& layout, std::span<const LazyTensor> tensors, std::span<const Digest> digests) {
    std::vector<safetensors::NamedDigest> all;
    all.reserve(layout.tensors + layout.aliases.size());
    std::vector<Dtype> dtypes(tensors.size());
    const auto add = [&](std::string_view name, std::uint32_t number) {
        all.push_back({name, dtypes[number], &tensors[number].shape(), digests[number]});
    };
    for (const ChosenTensor& chosen : layout.chosen) {
        dtypes[chosen.number] = chosen.dtype;
        const std::string& name = tensors[chosen.number].name();
        if (!layout.has_structure_tensor || name != state::structure_tensor) add(name, chosen.number);
    }
    for (const auto& [name, number] : layout.aliases) add(name, number);
    return safetensors::digest_of_all(std::move(all));
}

}  // namespace

void put_digests(PlannedFile& file, const Layout& layout, std::span<const LazyTensor> tensors,
                 std::span<const Digest> digests) {
    if (file.lists_digests) {
        std::vector<std::pair<std::string_view, Digest>> list;
        list.reserve(file.tensors.size());
        for (const PlannedTensor& planned : file.tensors)
            list.emplace_back(tensors[planned.number].name(), digests[planned.number]);
        safetensors::put_digests(file.head, list);
    }
    if (!file.has_checkpoint_digest) return;
    const Digest digest = layout.wholes.empty() ? digest_of(layout, tensors, digests)
                                                : digest_of(layout, layout.wholes, layout.whole_digests);
    safetensors::put_metadata(file.head, safetensors::checkpoint_digest_key, hex(digest));
}

}  // namespace safemap::SAFEMAP_ABI::write
