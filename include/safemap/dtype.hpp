// Element types: the 22 of safetensors, and those of PyTorch that safetensors has no name for.
// The table of names is lib/tensor/dtype.cpp.
#pragma once

#include <safemap/advanced/small_floats.hpp>
#include <safemap/api.hpp>

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// In the order of the reference implementation's enum (safetensors 0.8, tensor.rs): files are laid out in
/// this order, descending.
enum class Dtype : std::uint8_t {
    boolean,
    f4,
    f6_e2m3,
    f6_e3m2,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    f8_e8m0,
    f8_e4m3fnuz,
    f8_e5m2fnuz,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    c64,
    f64,
    i64,
    u64,
    // PyTorch's, without a safetensors name: only a structure document keeps them.
    c32,
    c128,
    qint8,
    quint8,
    qint32,
    quint4x2,
    quint2x4,
    bits8,
    bits16,
    bits1x8,
    bits2x4,
    bits4x2,
};

namespace detail {
/// In the order of Dtype.
inline constexpr std::uint8_t dtype_bits[] = {8,  4,  6,  6,  8,  8,  8,   8, 8, 8,  8, 16, 16, 16, 16, 32, 32,
                                              32, 64, 64, 64, 64, 32, 128, 8, 8, 32, 8, 8,  8,  16, 8,  8,  8};
}  // namespace detail

/// "BF16"; torch's lower-case name ("complex128") where safetensors has none.
SAFEMAP_API std::string_view name(Dtype dtype) noexcept;
/// torch's name, "bfloat16"; the safetensors name where torch has none (F6_E2M3, F6_E3M2).
SAFEMAP_API std::string_view torch_name(Dtype dtype) noexcept;
/// Bytes of one element; 0 for F4, F6_E2M3 and F6_E3M2.
constexpr unsigned element_size(Dtype dtype) noexcept {
    const unsigned bits = detail::dtype_bits[static_cast<std::size_t>(dtype)];
    return bits % 8 == 0 ? bits / 8 : 0;
}
/// Bytes of `elements`, or nothing where that overflows or does not fill whole bytes.
constexpr std::optional<std::uint64_t> byte_size(Dtype dtype, std::uint64_t elements) noexcept {
    std::uint64_t bits = 0;
    if (__builtin_mul_overflow(elements, detail::dtype_bits[static_cast<std::size_t>(dtype)], &bits))
        return std::nullopt;
    return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

/// What a person may type: "bf16", "BF16" or "bfloat16".
SAFEMAP_API std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

/// Writes name(dtype).
SAFEMAP_API std::ostream& operator<<(std::ostream& out, Dtype dtype);

}  // namespace safemap::SAFEMAP_ABI
