// The description of a tensor in the form of DLPack.
#pragma once

#include <safemap/advanced/dlpack.hpp>
#include <safemap/dtype.hpp>
#include <safemap/shape.hpp>

#include <cstdint>
#include <vector>

namespace safemap::SAFEMAP_ABI::dlpack {

/// Type, shape and strides of a tensor that is exported.
struct Described {
    DataType type;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;

    /// Returns the tensor at `data` with this description, which must outlive it.
    Tensor at(void* data, Device device = {}, std::uint64_t byte_offset = 0) noexcept;
};

/// Describes a tensor. Throws no_dlpack if DLPack does not have the dtype or the shape, and for pairs if the last
/// dimension is odd or strided.
Described described(Dtype dtype, const Shape& shape, const Strides& strides, Float4 float4);

}  // namespace safemap::SAFEMAP_ABI::dlpack
