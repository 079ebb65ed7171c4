// Maps each torch dtype that safetensors has no name for to its raw dtype.
#include "tensor/raw_dtype.hpp"

#include <safemap/advanced/dtypes.hpp>

namespace safemap::SAFEMAP_ABI {

namespace {

/// Returns true if an element is stored as two real numbers.
bool in_halves(Dtype dtype) { return !in_safetensors(dtype) && kind(dtype) == DtypeKind::complex; }

}  // namespace

Dtype raw_dtype(Dtype dtype) noexcept {
    switch (dtype) {
        case Dtype::c32: return Dtype::f16;
        case Dtype::c128: return Dtype::f64;
        case Dtype::qint8: return Dtype::i8;
        case Dtype::qint32: return Dtype::i32;
        case Dtype::bits16: return Dtype::u16;
        case Dtype::quint8:
        case Dtype::quint4x2:
        case Dtype::quint2x4:
        case Dtype::bits8:
        case Dtype::bits1x8:
        case Dtype::bits2x4:
        case Dtype::bits4x2: return Dtype::u8;
        default: return dtype;
    }
}

Shape raw_shape(Dtype dtype, const Shape& shape) {
    Shape raw = shape;
    if (in_halves(dtype)) raw.push_back(2);
    return raw;
}

std::optional<Shape> shape_of_raw(Dtype dtype, const Shape& raw) {
    if (!in_halves(dtype)) return raw;
    if (raw.empty() || raw.back() != 2) return std::nullopt;
    return Shape(std::span<const std::uint64_t>(raw).first(raw.size() - 1));
}

}  // namespace safemap::SAFEMAP_ABI
