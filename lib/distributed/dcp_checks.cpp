// Lists all items of a DCP folder, and keeps the metadata as long as verify() may ask for copies of items.
#include "distributed/dcp_checks.hpp"

#include "state/stored_places.hpp"

#include <safemap/advanced/stored_tensor.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::distributed {

namespace {

using state::Contents;
using state::Replica;

bool is_zip(const Source& source) {
    std::array<std::byte, 2> head{};
    if (source.size() < head.size()) return false;
    source.read_at(0, head);
    return head[0] == std::byte{'P'} && head[1] == std::byte{'K'};
}

std::shared_ptr<const StoredItems> stored_items(StoredItems listed, const DcpMetadata& metadata,
                                                const std::shared_ptr<const Source>& common,
                                                std::uint64_t metadata_bytes) {
    auto stored = std::make_shared<StoredItems>(std::move(listed));
    for (const DcpEntry& entry : metadata.entries) stored->names.push_back(entry.name);
    if (common && is_zip(*common)) {
        stored->files.push_back(common);
        stored->items.push_back({.offset = 0,
                                 .length = common->size(),
                                 .file = static_cast<std::uint32_t>(stored->files.size() - 1),
                                 .name = static_cast<std::uint32_t>(stored->names.size()),
                                 .zstd = false});
        stored->names.emplace_back("common.pt");
    }
    stored->bytes_beside = metadata_bytes;
    return stored;
}

/// The metadata and the items, as long as copies may be asked for.
struct Kept {
    DcpMetadata metadata;
    DcpItems items;

    /// Returns the values of a copy and of the item that is read: for an object, the bytes of the items. Returns
    /// nothing if one of them is faulty, or is an object that is compressed.
    std::optional<Replica> replica(std::size_t i) const {
        const DcpReplica& copy = metadata.replicas[i];
        const DcpItem& first = metadata.items[copy.item];
        const DcpEntry& entry = metadata.entries[first.entry];
        if (items.faulty[first.entry]) return std::nullopt;
        if (!entry.tensor && (first.transform != 0 || copy.other.transform != 0)) return std::nullopt;
        const auto bytes_of = [&](const DcpItem& item) {
            return LazyTensor({}, stored_run(Dtype::u8, {item.length}, items.sources[item.file], item.offset));
        };
        return Replica{.name = entry.name,
                       .first = entry.tensor ? items.value(items.locals[copy.item]) : bytes_of(first),
                       .other = entry.tensor ? items.value(items.replicas[i]) : bytes_of(copy.other),
                       .first_file = metadata.files[first.file],
                       .other_file = metadata.files[copy.other.file]};
    }
};

}  // namespace

void set_checks(Contents& contents, DcpMetadata metadata, DcpItems items, const std::shared_ptr<const Source>& common,
                std::uint64_t metadata_bytes) {
    contents.items = stored_items(std::exchange(items.stored, {}), metadata, common, metadata_bytes);
    if (metadata.replicas.empty()) return;
    metadata.places = {};
    metadata.steps = {};
    metadata.texts = {};
    items.trees = {};
    const auto kept = std::make_shared<const Kept>(Kept{std::move(metadata), std::move(items)});
    contents.each_replica = [kept](const std::function<void(const Replica&)>& visit) {
        for (std::size_t i = 0; i < kept->metadata.replicas.size(); ++i)
            if (const auto replica = kept->replica(i)) visit(*replica);
    };
}

}  // namespace safemap::SAFEMAP_ABI::distributed
