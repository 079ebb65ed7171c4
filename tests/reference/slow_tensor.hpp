// The slow reference for the gatherer: visits a value element by element, and searches each piece for it.
#pragma once

#include "tensor/convert.hpp"

#include <safemap/advanced/dtypes.hpp>
#include <safemap/advanced/stored_tensor.hpp>
#include <safemap/advanced/strides.hpp>
#include <safemap/dtype.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/shape.hpp>

#include <cstddef>
#include <vector>

namespace reference {

/// A tensor as the test described it, independent of the library.
struct Described {
    safemap::Dtype dtype = {};
    safemap::Shape shape = {};
    std::vector<safemap::RunPiece> runs = {};
    std::vector<safemap::BoxPiece> boxes = {};
    safemap::StridedView view = {};
    safemap::Decoding decoding = {};
    safemap::Dtype wanted = {};
};

/// Returns the value, row-major.
std::vector<std::byte> value_of(const Described& t);

}  // namespace reference
