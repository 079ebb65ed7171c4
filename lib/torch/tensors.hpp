// Describes the tensors of a pickle: storages by their persistent ids, and views of them. Every number is checked here,
// once.
#pragma once

#include "base/name_index.hpp"
#include "lazy/stored_tensor.hpp"
#include "pickle/pickle.hpp"
#include "torch/embedded.hpp"
#include "torch/rebuild.hpp"
#include "torch/storage_id.hpp"

#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/lazy_tensor.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// Most dimensions of a tensor. torch allows any number; real tensors have fewer than this, and 10,000 are an attack.
inline constexpr std::size_t max_dimensions = 64;

/// The elements of a storage that a tensor has.
struct Geometry {
    StridedView view;
    std::uint64_t elements;
};
/// Returns the geometry with these numbers. Throws bad_tensor and shape_overflow if no tensor can have them.
Geometry geometry_of(const Dims<std::int64_t>& sizes, Dims<std::int64_t> strides, std::int64_t offset);
/// Checks that a tensor fits into a storage of `elements` elements: one without elements fits, whatever its strides and
/// offset. Throws shape_overflow, and storage_too_short if the tensor reaches past the storage.
void require_inside(const Geometry& geometry, std::uint64_t elements);

/// The class names of storages that a pickle gives two types, by key. Refers to the pickle.
using TwoTypes = std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>, NameHash>;
/// Returns the storages with elements to which the persistent ids of a pickle give two types of elements, each with the
/// first type and the first other one. Unpickling order counts, as in torch.load.
TwoTypes storages_of_two_types(const PickleGraph& pickle);

/// A reader of the tensors of one pickle. Tied tensors share a store.
class TensorReader {
public:
    using Id = PickleGraph::Id;

    TensorReader(const PickleGraph& pickle, const Storages& storages, Allowance& allowance)
        : pickle_(pickle), storages_(storages), allowance_(allowance) {}

    /// The arguments of a rebuild function.
    struct Parts {
        Id storage;
        Id offset;
        Id size;
        Id stride;
        std::optional<Dtype> dtype = std::nullopt;  ///< from _rebuild_tensor_v3; by default the storage's
        Id metadata = PickleGraph::nothing;         ///< a dictionary with the lazy bits
    };
    /// Describes a tensor, without a name. Returns nothing if the storage is on the meta device and has no bytes.
    /// Throws bad_tensor, shape_overflow, storage_too_short, and what Storages::find throws.
    std::optional<LazyTensor> describe(const Parts& parts);
    /// Describes all elements of a storage, in order. Returns and throws as describe() does.
    std::optional<LazyTensor> whole(Id storage);

    /// Returns the dtype that describe() gives. Throws bad_tensor and shape_overflow if the storage is invalid.
    Dtype dtype(const Parts& parts) { return parts.dtype.value_or(storage_dtype(parts.storage)); }
    /// Returns the dtype of a storage. Throws as dtype() does.
    Dtype storage_dtype(Id id) { return storage(id).type.dtype; }
    /// Returns a sentence about storages that have more bytes than the pickle says, or nothing if no storage has.
    std::optional<std::string> note() const;

    /// Returns the dtype of a global such as torch.float32, or nothing for another node.
    std::optional<Dtype> dtype(Id id) const;

private:
    struct Store {
        std::string key;  ///< dtype, element count, and key or node of the storage, as bytes
        std::shared_ptr<const StoredTensor> stored;
    };

    Geometry geometry(const Parts& parts) const;
    Dims<std::int64_t> integers(Id id, std::string_view what) const;
    Decoding decoding(Dtype dtype, Id metadata) const;
    StorageId storage(Id id);
    RecordData bytes_of(Id id, const StorageId& storage) const;
    void require_one_type(const StorageId& storage);
    void add_longer(std::string_view key, std::uint64_t size, std::uint64_t stated);
    std::string key_of_store(Id id, const StorageId& storage, Dtype dtype, std::uint64_t elements) const;
    /// Returns a store of all elements of a storage. A new store has the given shape; an existing one keeps its own.
    std::shared_ptr<const StoredTensor> stored(Id id, const StorageId& storage, Dtype dtype, const Shape& shape,
                                               std::uint64_t elements);

    const PickleGraph& pickle_;
    const Storages& storages_;
    Allowance& allowance_;
    std::map<Id, EmbeddedStorage> embedded_;  ///< by the node of the call that would load it
    /// One store per storage, dtype and element count, so that tied tensors share it. A storage has a key, or is
    /// embedded.
    std::vector<Store> stores_;
    StoredRuns runs_;
    NameIndex by_key_;                        ///< index of stores_
    std::unordered_set<std::string> longer_;  ///< keys of storages with more bytes than the pickle says
    std::string first_longer_;
    /// Both class names of each storage that has two, by its key; nothing before the first storage is read.
    std::optional<TwoTypes> two_types_;
};

}  // namespace safemap::SAFEMAP_ABI::torch
