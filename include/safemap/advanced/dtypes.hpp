// What else there is to know of a dtype: its kind, its bits, and the names that safetensors and PyTorch have for it.
#pragma once

#include <safemap/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace safemap::SAFEMAP_ABI {

/// How many of the enumerators safetensors has a name for; they come first.
inline constexpr int safetensors_dtypes = 22;

/// What the bits of an element mean.
enum class DtypeKind : std::uint8_t { boolean, integer, real, complex, opaque };

/// Whether safetensors has a name for it.
constexpr bool in_safetensors(Dtype dtype) noexcept { return static_cast<int>(dtype) < safetensors_dtypes; }
/// Bits of one element: 4, 6, 8, 16, 32, 64 or 128. F4 and F6 are packed; the packed dtypes of torch
/// (quint4x2, bits1x8, …) count one stored byte as one element.
constexpr unsigned bits(Dtype dtype) noexcept { return detail::dtype_bits[static_cast<std::size_t>(dtype)]; }
SAFEMAP_API DtypeKind kind(Dtype dtype) noexcept;
/// Whether elements are whole bytes.
constexpr bool whole_bytes(Dtype dtype) noexcept { return bits(dtype) % 8 == 0; }
/// Bytes of what is swapped between byte orders: an element, or half of a complex one. 1 for sub-byte dtypes.
SAFEMAP_API unsigned swap_size(Dtype dtype) noexcept;
/// Exactly the names of safetensors headers: "F32". Nothing for anything else.
SAFEMAP_API std::optional<Dtype> dtype_from_safetensors(std::string_view name) noexcept;
/// torch's names, with or without "torch.": "bfloat16".
SAFEMAP_API std::optional<Dtype> dtype_from_torch(std::string_view name) noexcept;

}  // namespace safemap::SAFEMAP_ABI
