// When two tensors are one.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI {

/// The same elements of the same store, seen the same way, whatever they are called.
struct SameTensor {
    bool operator()(const LazyTensor* a, const LazyTensor* b) const;
};

struct TensorHash {
    // Not noexcept, since a view may be copied: so tables keep hashes, and compute each once.
    std::size_t operator()(const LazyTensor* tensor) const;
};

/// Not of no elements, nor where nobody else has its store.
inline bool may_be_tied(const LazyTensor& tensor) {
    return tensor.stored().use_count() > 1 && tensor.element_count() > 0;
}

/// By what tensors are. They stay with the caller, at their places.
template <class Value> using TensorTable = std::unordered_map<const LazyTensor*, Value, TensorHash, SameTensor>;

}  // namespace safemap::SAFEMAP_ABI
