// Implements equality and hash of tensors.
#include "lazy/same_tensor.hpp"

#include <safemap/advanced/strides.hpp>

#include <cstdint>
#include <functional>

namespace safemap::SAFEMAP_ABI {

bool SameTensor::operator()(const LazyTensor* a, const LazyTensor* b) const {
    if (a == b) return true;
    if (a->stored() != b->stored() || a->dtype() != b->dtype() || a->decoding() != b->decoding()) return false;
    const StridedView x = a->strided_view();
    const StridedView y = b->strided_view();
    return x.offset == y.offset && x.shape == y.shape && x.strides == y.strides;
}

std::size_t TensorHash::operator()(const LazyTensor* tensor) const {
    const StridedView view = tensor->strided_view();
    std::size_t hash = std::hash<const void*>{}(tensor->stored().get());
    // Slices of one tensor differ in offset or shape; the factor 2^64 / golden ratio spreads both.
    const auto mix = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x9E37'79B9'7F4A'7C15U; };
    mix(static_cast<std::uint64_t>(view.offset));
    mix(static_cast<std::uint64_t>(tensor->dtype()));
    for (const std::uint64_t size : view.shape) mix(size);
    for (const std::int64_t stride : view.strides) mix(static_cast<std::uint64_t>(stride));
    return hash;
}

}  // namespace safemap::SAFEMAP_ABI
