// Tensors of a pickle: storages by their persistent ids, and views of them. Every number is checked here, once.
#pragma once

#include "torch/pickle.hpp"
#include "torch/rebuild.hpp"

#include <safemap/lazy_tensor.hpp>

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

namespace safemap::torch {

/// torch allows any number of dimensions; nobody has more, and 10,000 are an attack.
inline constexpr std::size_t max_dimensions = 64;

class TensorReader {
public:
    using Id = PickleGraph::Id;

    TensorReader(const PickleGraph& pickle, const Storages& storages) : pickle_(pickle), storages_(storages) {}

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

    /// The dtype of a global such as torch.float32.
    std::optional<Dtype> dtype(Id id) const;
    /// The class of a storage, "FloatStorage", where `id` is one.
    std::optional<std::string_view> storage_class(Id id) const;

private:
    struct Storage {
        std::string_view key;
        Dtype dtype;
        std::uint64_t elements;
        bool untyped;
        bool meta;
    };
    struct Geometry {
        StridedView view;
        std::uint64_t elements;
    };

    Storage storage(Id id) const;
    Geometry geometry(const Parts& parts) const;
    std::int64_t integer(Id id, std::string_view what) const;
    Dims<std::int64_t> integers(Id id, std::string_view what) const;
    Decoding decoding(Dtype dtype, Id metadata) const;
    std::shared_ptr<const StoredTensor> stored(const Storage& storage, Dtype dtype, std::uint64_t elements);
    void double_last(Geometry& geometry) const;

    const PickleGraph& pickle_;
    const Storages& storages_;
    /// One store for each storage, dtype and size, so that tied tensors share it.
    std::map<std::tuple<std::string_view, Dtype, std::uint64_t>, std::shared_ptr<const StoredTensor>> stores_;
};

}  // namespace safemap::torch
