// When two tensors of a tree are one.
#pragma once

#include <safemap/lazy_tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace safemap::SAFEMAP_ABI::state {

/// The same elements of the same store, seen the same way.
struct Tie {
    const LazyTensor* tensor;

    friend bool operator==(const Tie& a, const Tie& b) {
        const StridedView& x = a.tensor->strided_view();
        const StridedView& y = b.tensor->strided_view();
        return a.tensor->stored() == b.tensor->stored() && a.tensor->dtype() == b.tensor->dtype() &&
               a.tensor->decoding() == b.tensor->decoding() && x.offset == y.offset && x.shape == y.shape &&
               x.strides == y.strides;
    }
};

struct TieHash {
    // Not noexcept, since a view may be copied: so tables keep hashes, and compute each once.
    std::size_t operator()(const Tie& tie) const {
        const StridedView& view = tie.tensor->strided_view();
        std::size_t hash = std::hash<const void*>{}(tie.tensor->stored().get());
        const auto mix = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15U; };
        mix(static_cast<std::uint64_t>(view.offset));
        for (const std::uint64_t size : view.shape) mix(size);
        for (const std::int64_t stride : view.strides) mix(static_cast<std::uint64_t>(stride));
        return hash;
    }
};

}  // namespace safemap::SAFEMAP_ABI::state
