// Tensors of a pickle: storages by their persistent ids, and views of them. Every number is checked here, once.
#pragma once

#include "base/name_index.hpp"
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
#include <unordered_set>
#include <vector>

namespace safemap::SAFEMAP_ABI::torch {

/// torch allows any number of dimensions; nobody has more, and 10,000 are an attack.
inline constexpr std::size_t max_dimensions = 64;

/// Which elements of a storage a tensor has.
struct Geometry {
    StridedView view;
    std::uint64_t elements;
};
/// Throws bad_tensor and shape_overflow where no tensor has such numbers.
Geometry geometry_of(const Dims<std::int64_t>& sizes, Dims<std::int64_t> strides, std::int64_t offset);
/// Throws shape_overflow, and storage_too_short where it reaches past a storage of so many elements. Where a tensor
/// has no elements, makes its strides and offset those that it would have.
void fit(Geometry& geometry, std::uint64_t elements);

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
        std::optional<Dtype> dtype = std::nullopt;  ///< of _rebuild_tensor_v3; else the storage's
        Id metadata = PickleGraph::nothing;         ///< a dict with the lazy bits
    };
    /// The tensor, without a name. Nothing where its storage is on the meta device and has no bytes. Throws
    /// bad_tensor, shape_overflow, storage_too_short, and what finding the record throws.
    std::optional<LazyTensor> describe(const Parts& parts);
    /// All elements of a storage, one after the other. Returns and throws as describe() does.
    std::optional<LazyTensor> whole(Id storage);

    /// The dtype that describe() gives. Throws bad_tensor and shape_overflow where the storage is none.
    Dtype dtype(const Parts& parts) { return parts.dtype.value_or(storage_dtype(parts.storage)); }
    /// The dtype of a storage. Throws as dtype() does.
    Dtype storage_dtype(Id id) { return storage(id).type.dtype; }
    /// A sentence about the storages that have more bytes than the pickle says, where there are any.
    std::optional<std::string> note() const;

    /// The dtype of a global such as torch.float32.
    std::optional<Dtype> dtype(Id id) const;

private:
    struct Store {
        std::string key;  ///< what tells it from others, as bytes
        std::shared_ptr<const StoredTensor> stored;
    };

    Geometry geometry(const Parts& parts) const;
    Dims<std::int64_t> integers(Id id, std::string_view what) const;
    Decoding decoding(Dtype dtype, Id metadata) const;
    StorageId storage(Id id);
    RecordData bytes_of(Id id, const StorageId& storage) const;
    void add_longer(std::string_view key, std::uint64_t size, std::uint64_t stated);
    std::string key_of_store(Id id, const StorageId& storage, Dtype dtype, std::uint64_t elements) const;
    /// All elements of a storage; of that shape where it was not asked for before.
    std::shared_ptr<const StoredTensor> stored(Id id, const StorageId& storage, Dtype dtype, const Shape& shape,
                                               std::uint64_t elements);

    const PickleGraph& pickle_;
    const Storages& storages_;
    Allowance& allowance_;
    std::map<Id, EmbeddedStorage> embedded_;  ///< by the call that would load it
    /// One store for each storage, dtype and size, so that tied tensors share it. A storage has a key, or is embedded.
    std::vector<Store> stores_;
    NameIndex by_key_;                        ///< of stores_
    std::unordered_set<std::string> longer_;  ///< keys of storages
    std::string first_longer_;
};

}  // namespace safemap::SAFEMAP_ABI::torch
