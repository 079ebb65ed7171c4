// Tensors of torch over the storages of a checkpoint: as torch.load's do, those of one storage share its memory.
#pragma once

#include "core.hpp"

#include <unordered_map>

namespace safemap::python {

/// The storages of some tensors, each mapped, or loaded once. Of one thread, which has the GIL.
class Storages {
public:
    /// `copies_read_only` is that of Handle.
    explicit Storages(bool copies_read_only) : copies_read_only_(copies_read_only) {}

    /// Adds the storage of a tensor, which must stay where it is. Not after open().
    void add(const LazyTensor& tensor);
    /// Maps the storages that can be mapped, and loads the others.
    void open(const nb::object& progress);

    /// Returns the value of an added tensor as torch.Tensor, a view of its storage.
    nb::object torch(const LazyTensor& tensor);
    /// Returns the stored numbers of a quantised tensor: (storage, dtype, offset, size, stride), as torch spells them.
    nb::object quantized(const LazyTensor& tensor);

private:
    struct Storage {
        LazyTensor whole;
        /// True if it is one value, and not what several tensors are views of: a cast, or a part of several pieces.
        bool value = false;
        bool aligned = false;                  ///< torch reads its elements at multiples of 16 bytes only
        std::optional<TensorView> bytes = {};  ///< as U8; not set for a storage without bytes
        nb::object first = {};                 ///< a tensor of torch over all of it
    };
    /// An object, or a source and an offset in it.
    using Key = std::pair<const void*, std::uint64_t>;
    struct KeyHash {
        std::size_t operator()(const Key& key) const noexcept {
            return std::hash<const void*>()(key.first) ^ std::hash<std::uint64_t>()(key.second);
        }
    };
    using Numbers = std::unordered_map<Key, std::size_t, KeyHash>;

    std::size_t add_storage(const LazyTensor& tensor);
    Storage& of(const LazyTensor& tensor);
    bool map(Storage& storage) const;
    static LoadTarget target_for(Storage& storage);
    nb::object untyped(Storage& storage);

    bool copies_read_only_;
    std::vector<Storage> storages_;
    Numbers by_place_;
    Numbers by_tensor_;  ///< by stored tensor and its decoding, or by the address of a value
};

}  // namespace safemap::python
