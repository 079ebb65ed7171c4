// Reads bytes that are embedded in a pickle, in each spelling, and storages among them. pickle.dump writes the storage
// of a tensor in this way: as the bytes of a whole torch.save file.
#pragma once

#include "pickle/pickle.hpp"
#include "torch/rebuild.hpp"
#include "torch/storage_types.hpp"

#include <cstdint>

namespace safemap::SAFEMAP_ABI::torch {

/// Returns the bytes of a node in any spelling, also Python 2's. Refers to the file if the file holds the bytes
/// unchanged. Throws bad_tensor if the node is not bytes, and pickle_too_large if `allowance` has no room for a copy.
RecordData embedded_bytes(const PickleGraph& pickle, PickleGraph::Id id, const Storages& storages,
                          Allowance& allowance);

/// Returns true if a node is a call of _load_from_bytes.
bool is_embedded(const PickleGraph& pickle, PickleGraph::Id id);

/// An embedded storage and the place of its bytes.
struct EmbeddedStorage {
    StorageType type;
    std::uint64_t elements = 0;
    RecordData data;
};
/// Returns the storage that a call of _load_from_bytes would load. The argument of the call is a torch.save file of one
/// storage. Throws what LegacyFile throws, and bad_tensor if the file holds something else; files inside that file are
/// not read.
EmbeddedStorage embedded_storage(const PickleGraph& pickle, PickleGraph::Id id, const Storages& storages,
                                 Allowance& allowance);

}  // namespace safemap::SAFEMAP_ABI::torch
