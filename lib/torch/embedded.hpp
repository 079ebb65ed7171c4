// Bytes that stand in a pickle, in each spelling, and the storages that are whole files of torch.save among them: so
// pickle.dump writes tensors.
#pragma once

#include "pickle/pickle.hpp"
#include "torch/rebuild.hpp"
#include "torch/storage_types.hpp"

#include <cstdint>

namespace safemap::SAFEMAP_ABI::torch {

/// The bytes that a node is in any spelling, Python 2's too: in the file where they stand there as they are. Throws
/// bad_tensor where it is something else, pickle_too_large where `allowance` has no room for a copy.
RecordData embedded_bytes(const PickleGraph& pickle, PickleGraph::Id id, const Storages& storages,
                          Allowance& allowance);

/// Whether a node is the call of _load_from_bytes.
bool is_embedded(const PickleGraph& pickle, PickleGraph::Id id);

/// A storage, and where its bytes are.
struct EmbeddedStorage {
    StorageType type;
    std::uint64_t elements = 0;
    RecordData data;
};
/// The storage that the call would load: its argument is a file of one storage. Throws what LegacyFile throws, and
/// bad_tensor where it is of something else; then no file inside that file is looked for.
EmbeddedStorage embedded_storage(const PickleGraph& pickle, PickleGraph::Id id, const Storages& storages,
                                 Allowance& allowance);

}  // namespace safemap::SAFEMAP_ABI::torch
