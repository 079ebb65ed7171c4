// Dtype: the 22 element types of safetensors, and the element types of PyTorch that safetensors has no name for.
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

/// The element type of a tensor. The order is that of the reference implementation's enum (safetensors 0.8, tensor.rs):
/// tensors in a file are sorted by it, descending.
///
/// Example:
///     std::optional<safemap::Dtype> dtype = safemap::parse_dtype("bfloat16");
///     if (dtype) std::cout << *dtype << ": " << safemap::element_size(*dtype) << " bytes\n";  // BF16: 2 bytes
///     static_assert(safemap::byte_size(safemap::Dtype::f4, 3) == std::nullopt);                // 12 bits
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
    // Dtypes of PyTorch without a safetensors name. Only a structure document keeps them.
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
/// Bits of one element, in the order of Dtype.
inline constexpr std::uint8_t dtype_bits[] = {8,  4,  6,  6,  8,  8,  8,   8, 8, 8,  8, 16, 16, 16, 16, 32, 32,
                                              32, 64, 64, 64, 64, 32, 128, 8, 8, 32, 8, 8,  8,  16, 8,  8,  8};
}  // namespace detail

/// Returns the safetensors name, such as "BF16", or torch's lower-case name ("complex128") if safetensors has no name.
[[nodiscard]] SAFEMAP_API std::string_view name(Dtype dtype) noexcept;
/// Returns torch's name, such as "bfloat16", or the safetensors name if torch has no name (F6_E2M3, F6_E3M2).
[[nodiscard]] SAFEMAP_API std::string_view torch_name(Dtype dtype) noexcept;
/// Returns the size of one element in bytes; 0 for F4, F6_E2M3 and F6_E3M2, whose elements share bytes.
[[nodiscard]] constexpr unsigned element_size(Dtype dtype) noexcept {
    const unsigned bits = detail::dtype_bits[static_cast<std::size_t>(dtype)];
    return bits % 8 == 0 ? bits / 8 : 0;
}
/// Returns the size of `elements` elements in bytes, or nothing if it overflows or is not a whole number of bytes.
[[nodiscard]] constexpr std::optional<std::uint64_t> byte_size(Dtype dtype, std::uint64_t elements) noexcept {
    std::uint64_t bits = 0;
    if (__builtin_mul_overflow(elements, detail::dtype_bits[static_cast<std::size_t>(dtype)], &bits))
        return std::nullopt;
    return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

/// Returns the dtype with this name as a person may type it, "bf16", "BF16" or "bfloat16", or nothing if it is unknown.
[[nodiscard]] SAFEMAP_API std::optional<Dtype> parse_dtype(std::string_view name) noexcept;

/// Writes name(dtype).
SAFEMAP_API std::ostream& operator<<(std::ostream& out, Dtype dtype);

}  // namespace safemap::SAFEMAP_ABI
