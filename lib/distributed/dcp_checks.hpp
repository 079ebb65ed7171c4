// Describes what verify() reads of a DCP folder: the places of all items, and the copies that several ranks have saved.
#pragma once

#include "distributed/dcp_items.hpp"
#include "distributed/dcp_metadata.hpp"
#include "state/contents.hpp"

#include <cstdint>
#include <memory>

namespace safemap::SAFEMAP_ABI::distributed {

/// Sets Contents::items and Contents::each_replica. `common` is Megatron's common.pt, or null. `metadata_bytes` is the
/// size of the files of metadata. Keeps of the metadata and the items only what is needed.
void set_checks(state::Contents& contents, DcpMetadata metadata, DcpItems items,
                const std::shared_ptr<const Source>& common, std::uint64_t metadata_bytes);

}  // namespace safemap::SAFEMAP_ABI::distributed
