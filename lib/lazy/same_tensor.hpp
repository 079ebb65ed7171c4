// Compares and hashes tensors by what they hold, to find tied weights.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <unordered_map>

namespace safemap::SAFEMAP_ABI {

/// Returns true for the same elements of the same stored tensor with the same view, dtype and decoding. Names do not
/// count.
struct SameTensor {
    bool operator()(const LazyTensor* a, const LazyTensor* b) const;
};

struct TensorHash {
    // Not noexcept, because the view may be copied. So hash tables cache the hash and compute it once.
    std::size_t operator()(const LazyTensor* tensor) const;
};

/// Returns false for a tensor without elements, and for one whose storage no other tensor shares.
inline bool may_be_tied(const LazyTensor& tensor) {
    return tensor.stored().use_count() > 1 && tensor.element_count() > 0;
}

/// A table by contents of tensors. Keys point to tensors of the caller, which must not move.
template <class Value> using TensorTable = std::unordered_map<const LazyTensor*, Value, TensorHash, SameTensor>;

}  // namespace safemap::SAFEMAP_ABI
