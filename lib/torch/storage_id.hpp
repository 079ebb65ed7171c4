// The persistent ids by which pickles of PyTorch name storages: ('storage', class, key, location, numel[, view]).
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

/// Of a storage's key, which is looked up for each of its tensors; torch writes numbers.
inline constexpr std::size_t max_storage_key = 1024;

inline constexpr std::uint64_t max_int64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
inline Error bad_tensor(const std::string& what) { return {Errc::bad_tensor, what}; }

struct StorageId {
    std::string_view key;
    StorageType type;
    std::uint64_t elements = 0;  ///< of the whole storage
    std::uint64_t first = 0;     ///< where what is named begins; other than 0 in views, which only old files have
    std::uint64_t count = 0;     ///< of what is named
    bool meta = false;           ///< on the meta device: there are no bytes
};

/// The class of a storage, "FloatStorage", where `id` is a persistent id of one.
std::optional<std::string_view> storage_class(const PickleGraph& pickle, PickleGraph::Id id);
/// Throws bad_tensor and shape_overflow where `id` is no persistent id of a storage that there can be.
StorageId storage_id(const PickleGraph& pickle, PickleGraph::Id id);

/// The class that a persistent id stands for: ('module', class, file, source), in the oldest files without the first.
/// Any other node is given back.
PickleGraph::Id class_of(const PickleGraph& pickle, PickleGraph::Id id);

/// The integer that a node is; `what` it is of goes into the error. Throws bad_tensor, shape_overflow.
std::int64_t integer_of(const PickleGraph& pickle, PickleGraph::Id id, std::string_view what);

}  // namespace safemap::SAFEMAP_ABI::torch
