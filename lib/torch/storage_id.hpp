// Parses the persistent ids by which PyTorch names storages: ('storage', class, key, location, numel[, view]).
#pragma once

#include "pickle/pickle.hpp"
#include "torch/storage_types.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace safemap::SAFEMAP_ABI::torch {

/// Longest key of a storage, in bytes. A key is looked up for each tensor of the storage; torch writes numbers.
inline constexpr std::size_t max_storage_key = 1024;

inline constexpr std::uint64_t max_int64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
inline Error bad_tensor(const std::string& what) { return {Errc::bad_tensor, what}; }

/// The parts of a storage's persistent id.
struct StorageId {
    std::string_view key;
    StorageType type;
    std::uint64_t elements = 0;  ///< element count of the whole storage
    std::uint64_t first = 0;     ///< first element of the view; 0 unless there is one, which only old files have
    std::uint64_t count = 0;     ///< element count of the view, by default that of the whole storage
    bool meta = false;           ///< on the meta device: the storage has no bytes
};

/// Returns the class of a storage, such as "FloatStorage". Returns nothing if `id` is not the persistent id of a
/// storage.
std::optional<std::string_view> storage_class(const PickleGraph& pickle, PickleGraph::Id id);
/// Parses the persistent id of a storage. Throws bad_tensor, shape_overflow, and storage_too_short if a view reaches
/// past its storage.
StorageId storage_id(const PickleGraph& pickle, PickleGraph::Id id);
/// Returns the key, type and element count that a persistent id states, unchecked, and true for the meta device.
/// Returns nothing for a node that states none of a known type; storage_id() says what is wrong with it.
std::optional<StorageId> stated_storage(const PickleGraph& pickle, PickleGraph::Id id);

/// Returns the class that a persistent id names: ('module', class, file, source), in the oldest files without the first
/// part. Returns any other node unchanged.
PickleGraph::Id class_of(const PickleGraph& pickle, PickleGraph::Id id);

/// Returns the integer value of a node. `what` describes it in errors. Throws bad_tensor, shape_overflow.
std::int64_t integer_of(const PickleGraph& pickle, PickleGraph::Id id, std::string_view what);

}  // namespace safemap::SAFEMAP_ABI::torch
